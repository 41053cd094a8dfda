"""A plan ready to be sampled: every row checked and every prompt made before the first token is sampled.

A plan is kept as Arrow and flat token ids, so that a million rollouts cost no more than their prompts; the
requests of a shard become objects when that shard is made.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Ints, ints, pc, positions
from gradus.data.curation.plan import refuse_odd
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import PLAN, ROLLOUTS, sample_key
from gradus.data.seeds import derive_seed
from gradus.models.engines.base import Request
from gradus.models.policy import PromptSide, chat_turns, prompt_tokens
from gradus.models.rendering import Asked as PromptParts
from gradus.models.rendering import PromptError, prompt_texts
from gradus.models.templates import PromptConfig
from gradus.tasks.config.curation import SampleConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.stages.rollout.parents import Parents, Start

TRAINED = "trained_prompt_tokens"
CHECKED_ROWS = 4096
"""Rows of a plan that are Python objects at once."""
_BUILT_ON = ("parent", "recall", "given")
"""Columns of a plan whose rows have another prompt than that of their problem, or one that is made elsewhere."""
Row = Mapping[str, Any]


class Asked(NamedTuple):
    """One request of a plan: its row, what that leaves out filled in, and its number among the row's."""

    row: Row
    sample: int
    request: Request
    start: Start | None = None
    """The beginning of the completion, if it continues another."""

    @property
    def prompt(self) -> tuple[int, ...]:
        """The prompt's token ids, without the given beginning of the completion."""
        return self.start.prompt if self.start else self.request.prompt_tokens


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
        parents: Parents | None = None,
        *,
        reseeds: bool = False,
    ) -> None:
        """`reseeds` mixes the seed into those of the plan's rows, which otherwise stay as they are."""
        self._plan = _filled(plan)
        self.parents = parents or Parents(ROLLOUTS.arrow.empty_table(), plan, side)
        self._problems = problems
        self._places = positions(plan.column("problem_id"), problems.column("problem_id"))
        self._side = side
        self._config = config
        self._seed = seed
        self._round = round_
        self._reseeds = reseeds
        self._trained: dict[int, list[int]] = {}
        """Prompts that groups are trained for, by number of the group, if they are not those sampled from."""
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

    def asked(self, start: int, stop: int, digest: str) -> list[Asked]:
        """The requests of a range of groups, for the rollouts artifact `digest`; seeds derive from their group's."""
        found: list[Asked] = []
        for group, (row, problem) in enumerate(self._rows(start, stop), start):
            name, level, seed, style = row["problem_id"], row["hint_level"], row["seed"], self._config.prompt
            if seed is None:
                seed = derive_seed(self._seed, name, self._round, level)
            elif self._reseeds:
                seed = derive_seed(self._seed, seed)
            prompt = tuple(self._tokens[self._offsets[group] : self._offsets[group + 1]].tolist())
            begun, max_tokens = self._start(row), row["max_tokens"]
            if begun is not None and self._side is not None:
                max_tokens = min(max_tokens, self._side.context_tokens - len(prompt))
            messages: tuple[Mapping[str, str], ...] = ()
            if self._side is None:
                messages = tuple(chat_turns(*asked(row, problem), row["hint_text"], style, row["shown"]))
            whole = {**row, TRAINED: self._trained.get(group), **(begun.of_prompt if begun else {})}
            for sample in range(row["n"]):
                request = Request(
                    rollout_id=sample_key(digest, f"{row['plan_id'] or row['group_id']}:{sample}"),
                    prompt_tokens=prompt,
                    seed=derive_seed(seed, sample),
                    max_tokens=max_tokens,
                    **self._sampling(row),
                    messages=messages,
                    stop=self._config.stop,
                )
                found.append(Asked(whole, sample, request, begun))
        return found

    def _sampling(self, row: Row) -> dict[str, Any]:
        rollout = {"top_p": self._config.top_p, "top_k": self._config.top_k}
        own = {name: row[name] for name in rollout if row[name] is not None}
        return {"temperature": row["temperature"], **rollout, **own}

    def _start(self, row: Row) -> Start | None:
        return None if row["parent"] is None else self.parents.start(row, self._sampling(row))

    def questions(self, problem_ids: Sequence[str]) -> list[str]:
        """The problems' questions as they are shown to people."""
        places = positions(pa.array(problem_ids, pa.string()), self._problems.column("problem_id"))
        found = ((row["question"], row["messages"] or []) for row in self._problems.take(places).to_pylist())
        return ["\n".join(str(m["content"]) for m in turns) if text is None else text for text, turns in found]

    def _prompts(self) -> tuple[Ints, np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """Every row checked, and every prompt's token ids (M,) with offsets (N+1,)."""
        lengths: list[int] = []
        flat = np.zeros(0, np.int32)
        for start in range(0, self._plan.num_rows, CHECKED_ROWS):
            rows = list(self._rows(start, min(start + CHECKED_ROWS, self._plan.num_rows)))
            prompts: list[Sequence[int]] = [()] * len(rows)
            bare = [at for at, (row, _) in enumerate(rows) if all(row[name] is None for name in _BUILT_ON)]
            for row, problem in (rows[at] for at in bare):
                if not row["messages"]:
                    refuse_empty(problem)
            if self._side is not None:
                found = checked_prompts([rows[at] for at in bare], self._side, self._config.prompt)
                for at, tokens in zip(bare, found, strict=True):
                    prompts[at] = tokens
                trained = [at for at, (row, _) in enumerate(rows) if row["trained_prompt"]]  # for the bare problem
                unhelped = [({**rows[at][0], "messages": None, "hint_text": None}, rows[at][1]) for at in trained]
                found = checked_prompts(unhelped, self._side, self._config.prompt)
                self._trained |= zip((start + at for at in trained), found, strict=True)
            for at, (row, _) in enumerate(rows):
                if (begun := self._start(row)) is not None:
                    prompts[at] = (*begun.prompt, *begun.tokens)
                    _refuse_full(row, prompts[at], self._side)
            lengths += map(len, prompts)
            flat = np.concatenate([flat, *(np.array(prompt, np.int32) for prompt in prompts)])
        return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))), flat

    def _rows(self, start: int, stop: int) -> Iterator[tuple[Row, Row]]:
        """Rows of the plan with their problems."""
        return with_problems(self._plan.slice(start, stop - start), self._problems, self._places[start:stop])


def with_problems(plan: pa.Table, problems: pa.Table, places: Ints) -> Iterator[tuple[Row, Row]]:
    """Return rows of a plan with their problems, at these places; BadInputError for an unknown problem (-1)."""
    if (places < 0).any():
        name = plan.column("problem_id")[int(np.argmax(places < 0))].as_py()
        raise BadInputError(f"the plan names problem {name}, which --problems does not have")
    return zip(plan.to_pylist(), problems.take(pa.array(places)).to_pylist(), strict=True)


def _filled(plan: pa.Table) -> pa.Table:
    """Return a plan with missing columns filled in; BadInputError names the first row that cannot be sampled."""
    usual = SampleConfig()
    defaults = {"hint_level": 0, "max_tokens": usual.max_tokens, "temperature": usual.temperature}
    for name, value in defaults.items():
        plan = plan.set_column(plan.column_names.index(name), name, pc.fill_null(plan.column(name), value))
    plan = PLAN.filled(plan, {*PLAN.names} - {"reason"})
    refuse_odd(plan)
    return plan


def _refuse_full(row: Row, tokens: Sequence[int], side: PromptSide | None) -> None:
    """Raise BadInputError if the tokens that a row continues leave no room for one of its own."""
    if side is not None and side.context_tokens <= len(tokens):
        raise BadInputError(
            f"rollout {row['parent']} up to its cut has {len(tokens)} tokens with its prompt and what is inserted: "
            f"the policy's {side.context_tokens} have no room for another",
            hint="cut it earlier, or leave it out",
        )


def asked(row: Row, problem: Row) -> tuple[str | None, list[dict[str, str]] | None]:
    """Return the question and the messages of a prompt; messages of the plan replace both of the problem."""
    return (None, row["messages"]) if row["messages"] else (problem["question"], problem["messages"])


def tokenised_prompts(rows: Sequence[tuple[Row, Row]], side: PromptSide, style: PromptConfig) -> list[list[int]]:
    """Return the prompt of each row and its problem, tokenised together; BadInputError for an invalid one."""
    parts = [PromptParts(*asked(row, problem), row["hint_text"], shown=row["shown"]) for row, problem in rows]
    try:
        prompts = prompt_tokens(side.tokenizer, prompt_texts(side.tokenizer, parts, style))
    except PromptError as error:
        raise BadInputError(f"problem {rows[error.index][0]['problem_id']} has no prompt: {error}") from None
    for (row, _), tokens in zip(rows, prompts, strict=True):
        if not tokens:
            name = row["problem_id"]
            raise BadInputError(f"the prompt of problem {name} is empty: the tokenizer knows none of its characters")
    return prompts


def checked_prompts(rows: Sequence[tuple[Row, Row]], side: PromptSide, style: PromptConfig) -> list[list[int]]:
    """Return the same of rows that are sampled; BadInputError if one leaves no room for its completions."""
    prompts = tokenised_prompts(rows, side, style)
    for (row, _), tokens in zip(rows, prompts, strict=True):
        name, max_tokens = row["problem_id"], row["max_tokens"]
        if side.context_tokens - len(tokens) < max_tokens:
            raise BadInputError(
                f"the prompt of problem {name} has {len(tokens)} tokens; with max_tokens {max_tokens} "
                f"it does not fit the policy's {side.context_tokens}",
                hint=f"lower max_tokens, or leave such problems out: ingest.max_prompt_tokens="
                f"{side.context_tokens - max_tokens} in a training, --filter length for `gradus curate`",
            )
    return prompts


def refuse_empty(problem: Row) -> None:
    """Raise BadInputError for a problem without text."""
    if not ((problem["question"] or "").strip() or problem["messages"]):
        name = problem["problem_id"]
        raise BadInputError(f"problem {name} has neither a question nor messages: its prompt would be empty")
