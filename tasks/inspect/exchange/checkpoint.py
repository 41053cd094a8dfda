"""A checkpoint as a folder that transformers, vLLM and a hub take: the policy alone, and a model card.

The train state, the critic and the table of the update stay in the lake. An adapter is written as peft takes it, or
merged into its base as a whole policy.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from jinja2 import Environment

from gradus.data.errors import BadInputError, CorruptArtifactError, OnDamage, refuse
from gradus.data.files import replace_file, replacing
from gradus.data.lake.manifest import FILE_NAME, NAMED, Manifest, sha256_file
from gradus.data.lake.queries import Relation, select
from gradus.data.lake.store import Ref, Store
from gradus.models.adapters import proof_of_merged, read_adapter
from gradus.models.chat_template import plain_chat_template
from gradus.models.errors import PolicyError
from gradus.models.policy import PromptSide, chat_turns, load_policy, load_prompt_side, prompt_text
from gradus.models.policy_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS, TOKENIZER_FILES
from gradus.models.templates import PromptConfig
from gradus.tasks.artifacts.policies import base_ref, verify_policy
from gradus.tasks.runs.history import attempts, run_folders
from gradus.tasks.runs.run_settings import read_settings
from gradus.tasks.stages.context import read_report

CHAT_TEMPLATE, GENERATION, TOKENIZER = "chat_template.jinja", "generation_config.json", "tokenizer_config.json"
MAX_CHARS = 4000
"""A longer completion is left out of the card."""
_SHORTEST = """
select p.question, p.messages, r.completion
from rollouts r join scores s on s.rollout_id = r.rollout_id join problems p on p.problem_id = r.problem_id
where s.correct order by length(r.completion), r.completion, r.problem_id limit 1
"""
_REPLACED = ("temperature", "top_p", "top_k", "stop_strings", "max_length", "max_new_tokens", "do_sample")


@dataclass(frozen=True)
class Prompting:
    """Prompts and sampling of a folder's policy in the main suite of its training."""

    policy: Path
    style: PromptConfig
    sampling: Mapping[str, object]
    """Arguments of transformers' `generate`; empty if no training says how the policy was sampled."""

    @classmethod
    def of(cls, policy: Path, recipe: Mapping[str, Any] | None) -> Self:
        """Return what a recipe says of its first suite; the defaults without one."""
        if recipe is None:
            return cls(policy, PromptConfig(), {})
        rollout = recipe.get("rollout", {})
        suite = next(iter(_suites(recipe)), {})
        prompt, stop = (rollout.get(key) if suite.get(key) is None else suite[key] for key in ("prompt", "stop"))
        sample = suite.get("sample", {})
        temperature = sample.get("temperature", 1.0)
        drawn = {"temperature": temperature, "top_p": rollout.get("top_p", 1.0), "top_k": rollout.get("top_k", 0)}
        more = {"max_new_tokens": sample.get("max_tokens"), "stop_strings": list(stop or ())}
        sampling = {
            "do_sample": bool(temperature),
            **(drawn if temperature else {}),  # the own top_k of `generate` is 50
            **{name: value for name, value in more.items() if value},
        }
        return cls(policy, PromptConfig.model_validate(prompt or {}), sampling)

    @cached_property
    def _prompt_side(self) -> PromptSide:
        try:
            return load_prompt_side(self.policy)
        except PolicyError as error:
            raise BadInputError(str(error), hint="give a checkpoint that an update made") from None

    @property
    def is_plain(self) -> bool:
        """Return whether the policy has no chat template of its own."""
        return self._prompt_side.tokenizer.chat_template is None

    def asked(self, problem: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the messages of a problem; our own template adds system message and template itself."""
        messages = problem["messages"]
        question = None if messages else problem["question"]
        return chat_turns(question, messages, None, PromptConfig() if self.is_plain else self.style)

    def text(self, problem: Mapping[str, Any]) -> str:
        """Return the prompt of a problem."""
        return prompt_text(self._prompt_side.tokenizer, problem["question"], problem["messages"], style=self.style)

    def write(self, folder: Path, *, whole: bool) -> list[str]:
        """Write what an exported folder lacks; return the names. peft reads generation settings of the base."""
        names: list[str] = []
        if not (folder / TOKENIZER).is_file():
            names += [Path(path).name for path in self._prompt_side.tokenizer.save_pretrained(folder)]
        if self.is_plain:
            replace_file(folder / CHAT_TEMPLATE, plain_chat_template(self._prompt_side.tokenizer, self.style))
            names.append(CHAT_TEMPLATE)
        if whole and self.sampling:
            path = folder / GENERATION
            config = json.loads(path.read_bytes()) if path.is_file() else {}
            kept = {name: value for name, value in config.items() if name not in _REPLACED}
            replace_file(path, json.dumps({**kept, **self.sampling}, indent=2, sort_keys=True) + "\n")
            names.append(GENERATION)
        return [name for name in names if (folder / name).is_file()]


def example_of(store: Store, evaluation: Ref | None) -> Mapping[str, Any] | None:
    """Return the shortest right completion that an evaluation looked at, and its problem; None if there is none."""
    manifest = store.find(evaluation) if evaluation else None
    if manifest is None:
        return None
    columns, rows = ["rollout_id", "problem_id", "completion", "correct", "question", "messages"], {}
    for role in ("problems", "rollouts", "scores"):
        ref = manifest.parent(role)
        if ref is None or store.find(ref) is None:
            return None
        rows[role] = Relation.of(store.read(ref, columns))
    with select(rows, {}, _SHORTEST) as answer:
        found = answer.table().to_pylist()
    return found[0] if found and len(found[0]["completion"]) <= MAX_CHARS else None


def _suites(recipe: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return recipe.get("evaluate", {}).get("suites", ())


def source_of(store: Store, runs: Path, ref: Ref, on_damage: OnDamage = refuse) -> Mapping[str, Any] | None:
    """Return run, round and recipe of the newest training that made a checkpoint; None if no run of this home did.

    `evaluations` are those of the checkpoint by suite, in whichever round: a skipped update evaluates it again. `main`
    is the artifact of the first suite's.
    """
    for folder in run_folders(runs):
        rows = [row for row in attempts(folder, on_damage) if row["status"] in ("finished", "reused")]
        made = [row["round"] for row in rows if row["output"] == str(ref) and row["stage"] == "update"]
        recipe = read_settings(folder, on_damage).get("recipe") if made else None
        if recipe is None:
            continue
        outputs = [Ref.parse(row["output"]) for row in rows if row["stage"] == "evaluate"]
        figures, artifacts = dict[str, Mapping[str, Any]](), dict[str, Ref]()
        for output in (each for each in outputs if _policy_of(store, each) == ref):
            try:
                summary: dict[str, Any] = {**read_report(store, output).get("summary", {})}
            except CorruptArtifactError as damage:
                on_damage(damage)
                continue
            figures[summary["suite"]], artifacts[summary["suite"]] = summary, output
        main = artifacts.get(next((suite["name"] for suite in _suites(recipe)), ""))
        return {"run": folder.name, "round": made[-1], "recipe": recipe, "evaluations": figures, "main": main}
    return None


def _policy_of(store: Store, evaluation: Ref) -> Ref | None:
    """Return the policy that an evaluation is of; None if its rollouts are gone, or somebody else's."""
    manifest = store.find(evaluation)
    named = manifest.parent("rollouts") if manifest else None
    rollouts = store.find(named) if named else None
    return rollouts.parent("policy") if rollouts else None


def model_card(
    ref: Ref,
    manifest: Manifest,
    source: Mapping[str, Any] | None,
    base: str = "",
    prompting: Prompting | None = None,
    example: Mapping[str, Any] | None = None,
) -> str:
    """Return the card; `base` is the name of an adapter's base, `example` what `example_of` returned."""
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)  # noqa: S701 - Markdown, by `code` and `block`
    environment.filters.update({"code": _code, "block": _block, "json": json.dumps, "python": repr})
    facts: dict[str, Any] = {"ref": ref, "source": source, "base": base, "prompting": prompting}
    facts["settings"] = source["recipe"] if source else manifest.config
    facts["suites"] = _suites(source["recipe"]) if source else ()
    if prompting:
        facts["messages"] = prompting.asked(example or {"question": "1 + 2 =", "messages": None})
    if prompting and example:
        completion = example["completion"]
        facts["example"] = {"messages": facts["messages"], "prompt": prompting.text(example), "completion": completion}
    return environment.from_string((Path(__file__).parent / "card.md").read_text(encoding="utf-8")).render(facts)


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


CARD = "README.md"
_WHOLE = (
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json", "added_tokens.json",
    *TOKENIZER_FILES,
)  # fmt: skip


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
    base, named = base_ref(store, ref), ""
    if base is None and (base_name or merge):
        what, option = ("it has no base to name", "--base") if base_name else ("there is nothing to merge", "--merge")
        raise BadInputError(f"{ref} is a whole policy: {what}", hint=f"leave {option} out")
    if base is None:
        names = _copied(store, ref, _WHOLE, folder)
    elif merge:
        names = _write_merged(store, ref, folder)
    else:
        named = base_name or name_of(store, base)
        names = _write_adapter(store, ref, named, folder)
    source = source_of(store, runs, ref, on_damage)
    prompting = Prompting.of(store.path(ref), source["recipe"] if source else None)
    names += prompting.write(folder, whole=not named)
    example = example_of(store, source["main"] if source else None)
    replace_file(folder / CARD, model_card(ref, store.manifest(ref), source, named, prompting, example))
    return sorted({*names, CARD})


def _copied(store: Store, ref: Ref, patterns: Sequence[str], folder: Path) -> list[str]:
    """Copy files of an artifact by their names; raise BadInputError if no weights are among them."""
    held = [entry.name for entry in store.manifest(ref).files]
    names = [n for n in held if "/" not in n and n != FILE_NAME and any(fnmatch(n, pattern) for pattern in patterns)]
    if not any(name.endswith(".safetensors") for name in names):
        raise BadInputError(f"{ref} holds no weights in safetensors", hint="give a checkpoint that an update made")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with replacing(folder / name) as temporary:
            shutil.copyfile(store.path(ref) / name, temporary)
    return names


def _write_adapter(store: Store, ref: Ref, base: str, folder: Path) -> list[str]:
    name, revision = split_name(base)
    config = json.loads((store.path(ref) / ADAPTER_CONFIG).read_bytes())
    config |= {"base_model_name_or_path": name, "revision": revision}
    names = _copied(store, ref, (ADAPTER_WEIGHTS, *TOKENIZER_FILES), folder)
    replace_file(folder / ADAPTER_CONFIG, json.dumps(config, indent=2, sort_keys=True))
    return [*names, ADAPTER_CONFIG]


def _write_merged(store: Store, ref: Ref, folder: Path) -> list[str]:
    """Write an adapter's base with the adapter added, once that is proved, as a whole policy; return the files."""
    try:
        policy = load_policy(store.path(ref))
        proof_of_merged(dict(policy.model.state_dict()), read_adapter(store.path(ref)))
    except (PolicyError, ValueError) as error:
        raise BadInputError(f"{ref} cannot be merged: {error}", hint="export it as an adapter") from None
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".merged") as parts:
        policy.model.save_pretrained(parts)
        policy.tokenizer.save_pretrained(parts)
        names = sorted(path.name for path in Path(parts).iterdir())
        for name in names:
            (Path(parts) / name).rename(folder / name)
    return names


def name_of(store: Store, base: Ref) -> str:
    """Return the folder or `id@revision` that a user's policy was read from; its path in the lake if that changed."""
    manifest = store.manifest(base)
    name = manifest.config.get(NAMED, "")
    folder = Path(name)
    if name and not folder.is_absolute():
        return name
    same = all((folder / e.name).is_file() and sha256_file(folder / e.name) == e.sha256 for e in manifest.files)
    return name if name and same else str(store.path(base))


def split_name(text: str) -> tuple[str, str | None]:
    """Return the folder or the id that a base's name holds, and its revision.

    >>> split_name("Qwen/Qwen2.5-0.5B@060db64"), split_name("/mnt/models@site/one")
    (('Qwen/Qwen2.5-0.5B', '060db64'), ('/mnt/models@site/one', None))
    """
    name, _, revision = text.partition("@")
    is_folder = Path(text).is_absolute() or Path(text).exists()
    return (name, revision) if revision and not is_folder else (text, None)
