"""The prompts, sampling and stop texts of a policy, from the recipe of its training.

That goes into the exported folder, as a chat template where the policy had none and in its generation configuration,
and onto its card, with the messages, the prompt that they become, one completion, and the code.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from gradus.data.arrays import pc
from gradus.data.errors import BadInputError
from gradus.data.files import replace_file
from gradus.data.lake.store import Ref, Store
from gradus.models.chat_template import plain_chat_template
from gradus.models.errors import PolicyError
from gradus.models.policy import PromptSide, chat_turns, load_prompt_side, prompt_text
from gradus.models.templates import PromptStyle
from gradus.tasks.config.prompts import PromptConfig

CHAT_TEMPLATE, GENERATION, TOKENIZER = "chat_template.jinja", "generation_config.json", "tokenizer_config.json"
MAX_CHARS = 4000
"""A longer completion is left out of the card."""
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

    def messages(self, question: str | None, messages: list[dict[str, str]] | None) -> list[dict[str, str]]:
        """Return the messages of a problem; our own template adds system message and template itself."""
        return chat_turns(question, messages, None, PromptStyle() if self.is_plain else self.style)

    def prompt(self, question: str | None, messages: list[dict[str, str]] | None) -> str:
        """Return the prompt of a problem."""
        return prompt_text(self._prompt_side.tokenizer, question, messages, style=self.style)

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


def on_card(prompting: Prompting, example: Mapping[str, Any] | None, *, whole: bool) -> dict[str, Any]:
    """Return what the section of the card on prompts shows; `whole` is False for an adapter."""
    question, messages = ("1 + 2 =", None) if example is None else (example["question"], example["messages"])
    asked = prompting.messages(None, messages) if messages else prompting.messages(question, None)
    shown = None
    if example is not None:
        prompt = prompting.prompt(question, messages)
        shown = {"messages": asked, "prompt": prompt, "completion": example["completion"]}
    return {
        "is_plain": prompting.is_plain,
        "messages": asked,
        "arguments": {} if whole else prompting.sampling,
        "sampling": prompting.sampling,
        "example": shown,
    }


def example_of(store: Store, evaluation: Ref | None) -> Mapping[str, Any] | None:
    """Return the shortest right completion that an evaluation looked at, and its problem; None if there is none."""
    manifest = store.find(evaluation) if evaluation else None
    if manifest is None:
        return None
    inputs = {role: Ref.parse(texts[0]) for role, texts in manifest.parents.items() if texts}
    if not {"problems", "rollouts", "scores"} <= set(inputs) or None in map(store.find, inputs.values()):
        return None
    scores = store.read(inputs["scores"], ["rollout_id", "correct"])
    right = scores.filter(pc.fill_null(scores.column("correct"), False)).column("rollout_id")
    rows = store.read(inputs["rollouts"], ["rollout_id", "problem_id", "completion"])
    rows = rows.filter(pc.is_in(rows.column("rollout_id"), value_set=right.combine_chunks()))
    texts = [
        (len(text), text, name)
        for text, name in zip(*(rows.column(c).to_pylist() for c in ("completion", "problem_id")), strict=True)
    ]
    if not texts or min(texts)[0] > MAX_CHARS:
        return None
    _, completion, name = min(texts)
    problems = store.read(inputs["problems"], ["problem_id", "question", "messages"])
    (problem,) = problems.filter(pc.equal(problems.column("problem_id"), name)).to_pylist()
    return {"question": problem["question"], "messages": problem["messages"], "completion": completion}
