"""A plan ready to be sampled: every row checked and every prompt made before the first token is sampled.

What is kept of a plan is Arrow and flat token ids, so that a million rollouts cost no more than their prompts; the
groups of a shard become objects when that shard is made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Ints, ints, positions
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import sample_key
from gradus.data.seeds import derive_seed
from gradus.models.engines.base import Request
from gradus.models.policy import PromptSide, chat_turns, prompt_tokens
from gradus.models.rendering import Asked, PromptError, prompt_texts
from gradus.models.templates import PromptStyle
from gradus.tasks.config.curation import SampleConfig
from gradus.tasks.config.rollout import RolloutConfig

CHECKED_ROWS = 4096
"""Rows of a plan that are Python objects at once."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """One row of the plan, ready to be sampled."""

    problem_id: str
    group_id: str
    n: int
    hint_level: int
    hint_text: str | None
    temperature: float
    max_tokens: int
    seed: int
    prompt: tuple[int, ...]
    messages: tuple[Mapping[str, str], ...]

    def requests(self, config: RolloutConfig, digest: str) -> list[Request]:
        """One request per sample of the rollouts artifact `digest`; the seed derives from the group's, not the id."""
        return [
            Request(
                rollout_id=sample_key(digest, f"{self.group_id}:{sample}"),
                prompt_tokens=self.prompt,
                seed=derive_seed(self.seed, sample),
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                messages=self.messages,
                stop=config.stop,
            )
            for sample in range(self.n)
        ]


class Planned:
    """A checked plan; BadInputError names the first row or problem that cannot be sampled.

    Without a prompt side the engine is asked with messages, and there are no token ids.
    """

    def __init__(
        self,
        plan: pa.Table,
        problems: pa.Table,
        side: PromptSide | None,
        config: RolloutConfig,
        seed: int,
        round_: int = 0,
    ) -> None:
        self._plan = plan
        self._problems = problems
        self._places = positions(plan.column("problem_id"), problems.column("problem_id"))
        self._side = side
        self._style = config.prompt.style
        self._seed = seed
        self._round = round_
        self._offsets, self._tokens = self._prompts()
        self._sizes = ints(plan.column("n"))

    @property
    def num_rows(self) -> int:
        """Rollouts in all."""
        return int(self._sizes.sum())

    def shards(self, shard_rows: int) -> list[tuple[int, int]]:
        """Ranges of groups, in plan order: as many as fit in `shard_rows` (a larger group is a shard of its own)."""
        found: list[tuple[int, int]] = []
        start, rows = 0, 0
        for group, n in enumerate(self._sizes.tolist()):
            if group > start and rows + n > shard_rows:
                found.append((start, group))
                start, rows = group, 0
            rows += n
        return [*found, (start, len(self._sizes))] if len(self._sizes) else found

    def groups(self, start: int, stop: int) -> list[Group]:
        """The groups of a range."""
        prompts = map(self._prompt, range(start, stop))
        return [self._group(*row, prompt) for row, prompt in zip(self._rows(start, stop), prompts, strict=True)]

    def questions(self, problem_ids: Sequence[str]) -> list[str]:
        """The problems' questions as they are shown to people."""
        places = positions(pa.array(problem_ids, pa.string()), self._problems.column("problem_id"))
        return [_shown(problem) for problem in self._problems.take(places).to_pylist()]

    def _prompt(self, group: int) -> tuple[int, ...]:
        return tuple(self._tokens[self._offsets[group] : self._offsets[group + 1]].tolist())

    def _prompts(self) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """Every row checked, and every prompt's token ids (M,) with offsets (N+1,)."""
        lengths: list[int] = []
        flat = np.zeros(0, np.int32)
        for start in range(0, self._plan.num_rows, CHECKED_ROWS):
            rows = list(self._rows(start, min(start + CHECKED_ROWS, self._plan.num_rows)))
            groups = [self._group(row, problem, ()) for row, problem in rows]
            if self._side is not None:
                prompts = _checked_prompts(groups, [problem for _, problem in rows], self._side, self._style)
                lengths += map(len, prompts)
                flat = np.concatenate([flat, *(np.array(prompt, np.int32) for prompt in prompts)])
            else:
                lengths += [0] * len(groups)
        return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), flat

    def _rows(self, start: int, stop: int) -> Iterator[tuple[Row, Row]]:
        """Rows of the plan with their problems."""
        places = self._places[start:stop]
        if (places < 0).any():
            name = self._plan.column("problem_id")[start + int(np.argmax(places < 0))].as_py()
            raise BadInputError(f"the plan names problem {name}, which --problems does not have")
        problems = self._problems.take(places).to_pylist()
        return zip(self._plan.slice(start, stop - start).to_pylist(), problems, strict=True)

    def _group(self, row: Row, problem: Row, prompt: tuple[int, ...]) -> Group:
        """A row of the plan, what it leaves out filled in."""
        default = SampleConfig()
        name, level, n = row["problem_id"], row["hint_level"] or 0, row["n"]
        max_tokens = default.max_tokens if row["max_tokens"] is None else row["max_tokens"]
        temperature = default.temperature if row["temperature"] is None else row["temperature"]
        if n is None or n < 1 or max_tokens < 1 or not 0.0 <= temperature < float("inf"):
            raise BadInputError(
                f"the plan asks for n = {n}, max_tokens = {max_tokens}, temperature = {temperature} of problem {name}",
                hint="n and max_tokens are at least 1, temperature at least 0",
            )
        _refuse_empty(problem)
        return Group(
            problem_id=name,
            group_id=row["group_id"],
            n=n,
            hint_level=level,
            hint_text=row["hint_text"],
            temperature=temperature,
            max_tokens=max_tokens,
            seed=derive_seed(self._seed, name, self._round, level) if row["seed"] is None else row["seed"],
            prompt=prompt,
            messages=() if self._side is not None else _messages(problem, row["hint_text"], self._style),
        )


def _messages(problem: Row, hint_text: str | None, style: PromptStyle) -> tuple[Mapping[str, str], ...]:
    return tuple(chat_turns(problem["question"], problem["messages"], hint_text, style))


def _refuse_empty(problem: Row) -> None:
    if not ((problem["question"] or "").strip() or problem["messages"]):
        name = problem["problem_id"]
        raise BadInputError(f"problem {name} has neither a question nor messages: its prompt would be empty")


def _checked_prompts(
    groups: Sequence[Group], problems: Sequence[Row], side: PromptSide, style: PromptStyle
) -> list[list[int]]:
    """Each group's prompt, tokenised together; BadInputError names the first that has none or is too long."""
    asked = [
        Asked(problem["question"], problem["messages"], group.hint_text)
        for group, problem in zip(groups, problems, strict=True)
    ]
    try:
        prompts = prompt_tokens(side.tokenizer, prompt_texts(side.tokenizer, asked, style))
    except PromptError as error:
        raise BadInputError(f"problem {groups[error.index].problem_id} has no prompt: {error}") from None
    for group, tokens in zip(groups, prompts, strict=True):
        name = group.problem_id
        if not tokens:
            raise BadInputError(f"the prompt of problem {name} is empty: the tokenizer knows none of its characters")
        if side.context_tokens - len(tokens) < group.max_tokens:
            raise BadInputError(
                f"the prompt of problem {name} has {len(tokens)} tokens; with max_tokens {group.max_tokens} "
                f"it does not fit the policy's {side.context_tokens}",
                hint=f"lower max_tokens, or leave such problems out: ingest.max_prompt_tokens="
                f"{side.context_tokens - group.max_tokens} in a training, --filter length for `gradus curate`",
            )
    return prompts


def _shown(problem: Row) -> str:
    if problem["question"] is not None:
        return problem["question"]
    return "\n".join(str(message["content"]) for message in problem["messages"] or [])
