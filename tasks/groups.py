"""A plan's rows as groups ready to be sampled: prompts made and checked before the first token is sampled."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data.errors import BadInputError
from data.seeds import derive_seed
from models.engines.base import Request
from models.policy import PolicyError, PromptSide, chat_turns, prompt_text, prompt_tokens
from tasks.config import RolloutConfig, SampleConfig

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

    def requests(self, config: RolloutConfig) -> list[Request]:
        """One request a sample, its seed derived from the group's."""
        return [
            Request(
                rollout_id=f"{self.group_id}:{sample}",
                prompt_tokens=self.prompt,
                seed=derive_seed(self.seed, sample),
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=config.top_p,
                top_k=config.top_k,
                messages=self.messages,
            )
            for sample in range(self.n)
        ]


def planned_groups(
    plan: Sequence[Row], problems: Mapping[str, Row], side: PromptSide | None, config: RolloutConfig, seed: int
) -> list[Group]:
    """Every row of a plan; BadInputError names the first problem that cannot be sampled.

    Without a prompt side the engine is asked with messages, and there are no token ids.
    """
    return [_group(row, problems, side, config, seed) for row in plan]


def divided(groups: Sequence[Group], shard_rows: int) -> Iterator[list[Group]]:
    """Whole groups in plan order, as many as fit in `shard_rows` (a larger group is a shard of its own)."""
    shard: list[Group] = []
    rows = 0
    for group in groups:
        if shard and rows + group.n > shard_rows:
            yield shard
            shard, rows = [], 0
        shard.append(group)
        rows += group.n
    if shard:
        yield shard


def _group(row: Row, problems: Mapping[str, Row], side: PromptSide | None, config: RolloutConfig, seed: int) -> Group:
    """A checked row of the plan, what it leaves out filled in."""
    default = SampleConfig()
    name, level, n = row["problem_id"], row["hint_level"] or 0, row["n"]
    max_tokens = default.max_tokens if row["max_tokens"] is None else row["max_tokens"]
    temperature = default.temperature if row["temperature"] is None else row["temperature"]
    if n is None or n < 1 or max_tokens < 1 or not 0.0 <= temperature < float("inf"):
        raise BadInputError(
            f"the plan asks for n = {n}, max_tokens = {max_tokens}, temperature = {temperature} of problem {name}",
            hint="n and max_tokens are at least 1, temperature at least 0",
        )
    if name not in problems:
        raise BadInputError(f"the plan names problem {name}, which --problems does not have")
    return Group(
        problem_id=name,
        group_id=row["group_id"],
        n=n,
        hint_level=level,
        hint_text=row["hint_text"],
        temperature=temperature,
        max_tokens=max_tokens,
        seed=derive_seed(seed, name, config.round, level) if row["seed"] is None else row["seed"],
        prompt=() if side is None else _prompt(problems[name], row["hint_text"], max_tokens, side),
        messages=() if side is not None else _messages(problems[name], row["hint_text"]),
    )


def _messages(problem: Row, hint_text: str | None) -> tuple[Mapping[str, str], ...]:
    _refuse_empty(problem)
    return tuple(chat_turns(problem["question"], problem["messages"], hint_text))


def _refuse_empty(problem: Row) -> None:
    if not ((problem["question"] or "").strip() or problem["messages"]):
        name = problem["problem_id"]
        raise BadInputError(f"problem {name} has neither a question nor messages: its prompt would be empty")


def _prompt(problem: Row, hint_text: str | None, max_tokens: int, side: PromptSide) -> tuple[int, ...]:
    name = problem["problem_id"]
    _refuse_empty(problem)
    try:
        text = prompt_text(side.tokenizer, problem["question"], problem["messages"], hint_text)
    except PolicyError as error:
        raise BadInputError(f"problem {name} has no prompt: {error}") from None
    tokens = tuple(prompt_tokens(side.tokenizer, text))
    if not tokens:
        raise BadInputError(f"the prompt of problem {name} is empty: the tokenizer knows none of its characters")
    if side.context_tokens - len(tokens) < max_tokens:
        raise BadInputError(
            f"the prompt of problem {name} has {len(tokens)} tokens; with max_tokens {max_tokens} "
            f"it does not fit the policy's {side.context_tokens}",
            hint="lower max_tokens or drop the problem with --filter length",
        )
    return tokens
