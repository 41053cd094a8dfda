"""The card of an exported policy: where it comes from, its figures, and how to prompt it, from its training's recipe.

Prompts, sampling and stop texts go into the exported folder too, as a chat template where the policy had none and in
its generation configuration. The card holds settings, figures and one example as JSON; nothing else that a model wrote.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from jinja2 import Environment

from gradus.data.errors import BadInputError, CorruptArtifactError, OnDamage, refuse
from gradus.data.files import replace_file
from gradus.data.lake.manifest import Manifest
from gradus.data.lake.queries import Relation, select
from gradus.data.lake.store import Ref, Store
from gradus.models.chat_template import plain_chat_template
from gradus.models.errors import PolicyError
from gradus.models.policy import PromptSide, chat_turns, load_prompt_side, prompt_text
from gradus.models.templates import PromptStyle
from gradus.tasks.config.prompts import PromptConfig
from gradus.tasks.runs.history import Attempt, attempts, run_folders
from gradus.tasks.runs.journal import read_settings
from gradus.tasks.runtime.attempt import read_report

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
    style: PromptStyle
    sampling: Mapping[str, object]
    """Arguments of transformers' `generate`; empty if no training says how the policy was sampled."""

    @classmethod
    def of(cls, policy: Path, recipe: Mapping[str, Any] | None) -> Self:
        """Return what a recipe says of its first suite; the defaults without one."""
        if recipe is None:
            return cls(policy, PromptStyle(), {})
        rollout = recipe.get("rollout", {})
        suite = next(iter(recipe.get("evaluate", {}).get("suites", ())), {})
        prompt, stop = (rollout.get(key) if suite.get(key) is None else suite[key] for key in ("prompt", "stop"))
        style = PromptConfig.model_validate(prompt or {}).style
        return cls(policy, style, _sampling(suite.get("sample", {}), rollout, stop or []))

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
        return chat_turns(question, messages, None, PromptStyle() if self.is_plain else self.style)

    def text(self, problem: Mapping[str, Any]) -> str:
        """Return the prompt of a problem."""
        side = self._prompt_side
        return prompt_text(side.tokenizer, problem["question"], problem["messages"], style=self.style)

    def write(self, folder: Path, *, whole: bool) -> list[str]:
        """Write into an exported folder what it lacks; return the names of the files.

        An adapter has no generation configuration: peft reads that of its base.
        """
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


def _sampling(sample: Mapping[str, Any], rollout: Mapping[str, Any], stop: list[str]) -> dict[str, object]:
    """Return the sampling as arguments of `generate`, whose own top_k is 50."""
    temperature = sample.get("temperature", 1.0)
    drawn = {"temperature": temperature, "top_p": rollout.get("top_p", 1.0), "top_k": rollout.get("top_k", 0)}
    return {
        "do_sample": bool(temperature),
        **(drawn if temperature else {}),
        **({"max_new_tokens": sample["max_tokens"]} if sample.get("max_tokens") else {}),
        **({"stop_strings": list(stop)} if stop else {}),
    }


def example_of(store: Store, evaluation: Ref | None) -> Mapping[str, Any] | None:
    """Return the shortest right completion that an evaluation looked at, and its problem; None if there is none."""
    manifest = store.find(evaluation) if evaluation else None
    if manifest is None:
        return None
    inputs = {role: Ref.parse(texts[0]) for role, texts in manifest.parents.items() if texts}
    if not {"problems", "rollouts", "scores"} <= set(inputs) or None in map(store.find, inputs.values()):
        return None
    columns = ["rollout_id", "problem_id", "completion", "correct", "question", "messages"]
    rows = {role: Relation.of(store.read(inputs[role], columns)) for role in ("problems", "rollouts", "scores")}
    with select(rows, {}, _SHORTEST) as answer:
        found = answer.table().to_pylist()
    return found[0] if found and len(found[0]["completion"]) <= MAX_CHARS else None


def source_of(store: Store, runs: Path, ref: Ref, on_damage: OnDamage = refuse) -> Mapping[str, Any] | None:
    """Return run, round and recipe of the newest training that made a checkpoint; None if no run of this home did.

    `evaluations` are those of the checkpoint by suite; `main` is the artifact of the first suite's.
    """
    for folder in run_folders(runs):
        rows = [row for row in attempts(folder, on_damage) if row["status"] in ("finished", "reused")]
        made = [row for row in rows if row["output"] == str(ref) and row["stage"] == "update"]
        settings = read_settings(folder, on_damage)
        if made and "recipe" in settings:
            recipe: Mapping[str, Any] = settings["recipe"]
            found = dict(_evaluations(store, rows, ref, on_damage))
            first = next((suite["name"] for suite in recipe.get("evaluate", {}).get("suites", ())), "")
            return {
                "run": folder.name,
                "round": made[-1]["round"],
                "recipe": recipe,
                "evaluations": {suite: figures for suite, (figures, _) in found.items()},
                "main": found.get(first, (None, None))[1],
            }
    return None


def _evaluations(
    store: Store, rows: Sequence[Attempt], ref: Ref, on_damage: OnDamage
) -> Iterator[tuple[str, tuple[Mapping[str, Any], Ref]]]:
    """Yield each evaluation of a checkpoint by suite, in whichever round: a skipped update evaluates it again."""
    for output in (Ref.parse(row["output"]) for row in rows if row["stage"] == "evaluate"):
        if _policy_of(store, output) == str(ref):
            try:
                summary: dict[str, Any] = {**read_report(store, output).get("summary", {})}
            except CorruptArtifactError as damage:
                on_damage(damage)
                continue
            yield summary["suite"], (summary, output)


def _policy_of(store: Store, evaluation: Ref) -> str:
    """The policy that an evaluation is of; empty if its rollouts are gone, or somebody else's."""
    manifest = store.find(evaluation)
    rollouts = store.find(Ref.parse(manifest.parents["rollouts"][0])) if manifest else None
    return next(iter(rollouts.parents.get("policy", ())), "") if rollouts else ""


def model_card(
    ref: Ref,
    manifest: Manifest,
    source: Mapping[str, Any] | None,
    base: str = "",
    prompting: Prompting | None = None,
    example: Mapping[str, Any] | None = None,
) -> str:
    """Return the card: where the weights come from, data, evaluation, how to load and prompt them, recipe.

    `base` is the name of an adapter's base, `example` what `example_of` returned.
    """
    environment = Environment(trim_blocks=True, keep_trailing_newline=True)  # noqa: S701 - Markdown, by `code` and `block`
    environment.filters.update({"code": _code, "block": _block, "json": json.dumps, "python": repr})
    facts: dict[str, Any] = {"ref": ref, "source": source, "base": base, "prompting": prompting}
    facts["settings"] = source["recipe"] if source else manifest.config
    facts["suites"] = source["recipe"].get("evaluate", {}).get("suites", ()) if source else ()
    if prompting:
        facts["messages"] = prompting.asked(example or {"question": "1 + 2 =", "messages": None})
    if prompting and example:
        completion = example["completion"]
        facts["example"] = {"messages": facts["messages"], "prompt": prompting.text(example), "completion": completion}
    template = environment.from_string((Path(__file__).parent / "card.md").read_text(encoding="utf-8"))
    return template.render(facts)


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
