"""A checkpoint as a folder that transformers, vLLM and a hub take: the policy alone, and a model card.

The train state, the critic and the table of the update stay in the lake. The card holds settings, figures and one
example as JSON; nothing else that a model wrote.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from jinja2 import Environment

from gradus.data.errors import BadInputError, CorruptArtifactError, OnDamage, refuse
from gradus.data.files import replace_file, replacing
from gradus.data.lake.manifest import FILE_NAME, Manifest
from gradus.data.lake.store import Ref, Store
from gradus.models.policy_files import TOKENIZER_FILES
from gradus.tasks.artifacts.policies import base_ref, verify_policy
from gradus.tasks.inspect.exchange.base_name import BaseName, known_name
from gradus.tasks.runs.history import Attempt, attempts, run_folders
from gradus.tasks.runs.journal import read_settings
from gradus.tasks.runs.records import Evaluation
from gradus.tasks.runtime.attempt import read_report

CARD = "README.md"
_POLICY = (
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "added_tokens.json",
    *TOKENIZER_FILES,
)  # fmt: skip
"""Names of the files that make a policy."""


class Source(TypedDict):
    """The run and the round whose update made a checkpoint, and its evaluations by suite; `main` is the first's."""

    run: str
    round: int
    recipe: Mapping[str, Any]
    evaluations: Mapping[str, Evaluation]
    main: Ref | None


def write_checkpoint(
    store: Store,
    runs: Path,
    ref: Ref,
    folder: Path,
    *,
    merge: bool = False,
    base_name: str = "",
    on_damage: OnDamage = refuse,
) -> list[str]:
    """Write a checkpoint's policy and its card into a folder; return the names of the files.

    An adapter is written as such, calling its base by a name or by what the user called it, or merged into its base.
    Raise BadInputError for a checkpoint without weights, and if there is nothing to merge or no base to name.
    """
    verify_policy(store, ref)
    manifest, base = store.manifest(ref), base_ref(store, ref)
    if base is None:
        if base_name:
            raise BadInputError(f"{ref} is a whole policy: it has no base to name", hint="leave --base out")
        names, named = _write_whole(store, ref, manifest, folder, merge=merge), ""
    else:
        from gradus.tasks.inspect.exchange.adapter import write_adapter, write_merged  # noqa: PLC0415 - loads torch

        if merge:
            names, named = write_merged(store, ref, folder), ""
        else:
            policy_of = partial(_starting_policy, store, runs, on_damage)
            named = BaseName.parse(base_name) if base_name else known_name(store, ref, base, policy_of)
            names = write_adapter(store, ref, named, folder)
    from gradus.tasks.inspect.exchange.prompting import Prompting, example_of, on_card  # noqa: PLC0415 - as above

    source = source_of(store, runs, ref, on_damage)
    prompting = Prompting.of(store.path(ref), source["recipe"] if source else None)
    names += prompting.write(folder, whole=not named)
    prompt = on_card(prompting, example_of(store, source["main"] if source else None), whole=not named)
    replace_file(folder / CARD, model_card(ref, manifest, source, str(named), prompt))
    return sorted({*names, CARD})


def _write_whole(store: Store, ref: Ref, manifest: Manifest, folder: Path, *, merge: bool) -> list[str]:
    if merge:
        raise BadInputError(f"{ref} is a whole policy: there is nothing to merge", hint="leave --merge out")
    names = [entry.name for entry in manifest.files if _is_policy(entry.name)]
    if not any(name.endswith(".safetensors") for name in names):
        raise BadInputError(f"{ref} holds no weights in safetensors", hint="give a checkpoint that an update made")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with replacing(folder / name) as temporary:
            shutil.copyfile(store.path(ref) / name, temporary)
    return names


def _is_policy(name: str) -> bool:
    return "/" not in name and name != FILE_NAME and any(fnmatch(name, pattern) for pattern in _POLICY)


def source_of(store: Store, runs: Path, ref: Ref, on_damage: OnDamage = refuse) -> Source | None:
    """Return the newest training that made a checkpoint; None if no run of this home did."""
    for folder in run_folders(runs):
        rows = [row for row in attempts(folder, on_damage) if row["status"] in ("finished", "reused")]
        made = [row for row in rows if row["output"] == str(ref) and row["stage"] == "update"]
        settings = read_settings(folder, on_damage)
        if made and "recipe" in settings:
            found = {each["suite"]: (each, output) for each, output in _evaluations(store, rows, ref, on_damage)}
            return {
                "run": folder.name,
                "round": made[-1]["round"],
                "recipe": settings["recipe"],
                "evaluations": {suite: figures for suite, (figures, _) in found.items()},
                "main": found.get(_main_suite(settings["recipe"]), (None, None))[1],
            }
    return None


def _starting_policy(store: Store, runs: Path, on_damage: OnDamage, ref: Ref) -> str:
    """The policy that the training began with which made a checkpoint; empty if none of this home did."""
    source = source_of(store, runs, ref, on_damage)
    return str(source["recipe"]["policy"]) if source else ""


def _main_suite(recipe: Mapping[str, Any]) -> str:
    """The name of the first suite of a recipe; empty if it has none."""
    return next((suite["name"] for suite in recipe.get("evaluate", {}).get("suites", ())), "")


def _evaluations(store: Store, rows: list[Attempt], ref: Ref, on_damage: OnDamage) -> Iterator[tuple[Evaluation, Ref]]:
    """The evaluations of a checkpoint, in whichever round: one whose update was skipped evaluates it again."""
    for row in rows:
        if row["stage"] == "evaluate" and _policy_of(store, Ref.parse(row["output"])) == str(ref):
            try:
                report = read_report(store, Ref.parse(row["output"]))
            except CorruptArtifactError as damage:
                on_damage(damage)
                continue
            summary: Evaluation = report.get("summary", {})  # pyright: ignore[reportAssignmentType] - of `evaluate`
            yield summary, Ref.parse(row["output"])


def _policy_of(store: Store, evaluation: Ref) -> str:
    """The policy that an evaluation is of; empty if its rollouts are gone, or somebody else's."""
    manifest = store.find(evaluation)
    rollouts = store.find(Ref.parse(manifest.parents["rollouts"][0])) if manifest else None
    return next(iter(rollouts.parents.get("policy", ())), "") if rollouts else ""


def model_card(
    ref: Ref, manifest: Manifest, source: Source | None, base: str = "", prompt: Mapping[str, Any] | None = None
) -> str:
    """Return the card: where the weights come from, data, evaluation, how to load and prompt them, recipe.

    `base` is the name of an adapter's base, `prompt` what `on_card` returned.
    """
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)  # noqa: S701 - Markdown, by `code` and `block`
    environment.filters.update({"code": _code, "block": _block, "json": json.dumps, "python": repr})
    settings: Mapping[str, Any] = source["recipe"] if source else manifest.config
    suites = settings.get("evaluate", {}).get("suites", ()) if source else ()
    template = environment.from_string((Path(__file__).parent / "card.md").read_text(encoding="utf-8"))
    return template.render(ref=ref, source=source, suites=suites, base=base, prompt=prompt, settings=settings)


def _code(text: object) -> str:
    """Return a text as code in a line of Markdown, where it can begin nothing else."""
    plain = " ".join(str(text).replace("|", "/").split()).replace("`", "'")
    return f"`{plain}`"


def _block(value: object) -> str:
    """Return a value as JSON in a block of code that nothing in it can end."""
    text, fence = json.dumps(value, indent=1, ensure_ascii=False), "```"
    while fence in text:
        fence += "`"
    return f"{fence}json\n{text}\n{fence}"
