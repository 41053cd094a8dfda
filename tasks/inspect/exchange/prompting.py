"""The prompts, sampling and stop texts of a policy, from the recipe of its training.

That goes into the exported folder, as a chat template where the policy had none and in its generation configuration,
and onto its card.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from gradus.data.errors import BadInputError
from gradus.data.files import replace_file
from gradus.models.chat_template import plain_chat_template
from gradus.models.errors import PolicyError
from gradus.models.policy import PromptSide, chat_turns, load_prompt_side, prompt_text
from gradus.models.templates import PromptStyle
from gradus.tasks.config.prompts import PromptConfig

CHAT_TEMPLATE, GENERATION, TOKENIZER = "chat_template.jinja", "generation_config.json", "tokenizer_config.json"
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
