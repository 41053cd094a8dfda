"""Groups of rollouts with their texts: what a report and `gradus browse` show side by side, the best and worst first.

rows.ask(...) chooses groups by figures; read_groups(rows, keys, tokenizers) reads their texts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from gradus.tasks.formats import visible
from gradus.tasks.inspect.run_rows import RunRows
from gradus.tasks.inspect.token_pieces import Piece, Tokenizers, split

T = TypeVar("T")


@dataclass(frozen=True)
class GroupKey:
    """Names a group within a run; `group_id` is null in files of users."""

    round: int
    purpose: str
    problem_id: str
    group_id: str | None
    rollouts_artifact: str


Rollout = Mapping[str, Any]
"""A completion and how it was judged and learnt from: what the three queries below select, and `pieces`, the
completion token by token; None without log-probs or a tokenizer."""


@dataclass(frozen=True)
class Group:
    """A problem's rollouts, the best, the worst, then the others by their reward."""

    key: GroupKey
    question: str
    answer: str | None
    hint_level: int
    hint_text: str | None
    rollouts: Sequence[Rollout]
    num_rollouts: int
    """Of the group; more than are shown if it is large."""

    @property
    def num_correct(self) -> int:
        """Right ones of those shown."""
        return sum(rollout["correct"] is True for rollout in self.rollouts)


_TEXTS = """
select round, purpose, problem_id, group_id, rollouts_artifact, rollout_id, sample, policy,
    coalesce(completion, '') as completion, completion_tokens as tokens, finish_reason,
    reward, parts, correct, outcome, extracted, error, verifier, question, answer, hint_level
from samples where rollouts_artifact in ({artifacts}) and problem_id in ({problems})
"""
_TOKENS = """
select rollout_id, completion_tokens as token_ids, logprobs, hint_text from rollouts
where artifact in ({artifacts}) and problem_id in ({problems})
"""
_LEARNT = """
select rollout_id, round, purpose, advantage, weight, mismatch from sampled
where rollouts_artifact in ({artifacts}) and problem_id in ({problems})
"""
_NO_TOKENS = {"token_ids": None, "logprobs": None, "hint_text": None}
_NOT_LEARNT = {"advantage": None, "weight": None, "mismatch": None}


def read_groups(rows: RunRows, keys: Sequence[GroupKey], tokenizers: Tokenizers, limit: int = 0) -> list[Group]:
    """Return groups with their texts, in order; of more than `limit` rollouts the best and the worst half; 0 is all.

    Texts and tokens are read once for all groups, which takes about as long as for one.
    """
    if not keys:
        return []
    artifacts, problems = ({getattr(key, name) for key in keys} for name in ("rollouts_artifact", "problem_id"))
    names, values = {"artifacts": _marks(artifacts), "problems": _marks(problems)}, [*artifacts, *problems]
    tokens = {row["rollout_id"]: row for row in rows.records(_TOKENS.format(**names), values)}
    learnt = {_use(row): row for row in rows.records(_LEARNT.format(**names), values)}
    found: dict[GroupKey, list[Rollout]] = {}
    for row in rows.records(_TEXTS.format(**names), values):
        key = GroupKey(*(row[each.name] for each in fields(GroupKey)))
        rollout = {**tokens.get(row["rollout_id"], _NO_TOKENS), **learnt.get(_use(row), _NOT_LEARNT), **row}
        found.setdefault(key, []).append(rollout)
    return [_group(key, found[key], tokenizers, limit) for key in keys]


def _use(row: Rollout) -> tuple[str, int, str]:
    """The use of a rollout: another round may evaluate it again."""
    return row["rollout_id"], row["round"], row["purpose"]


def read_group(rows: RunRows, key: GroupKey, tokenizers: Tokenizers, limit: int = 0) -> Group:
    """Return one group, as `read_groups` does."""
    return read_groups(rows, [key], tokenizers, limit)[0]


def _marks(values: Collection[str]) -> str:
    """A question mark for each value: Arrow is asked for the row groups that hold them, which no join would do."""
    return ", ".join("?" * len(values))


def _group(key: GroupKey, rollouts: Sequence[Rollout], tokenizers: Tokenizers, limit: int) -> Group:
    chosen = best_and_worst(sorted(rollouts, key=_by_reward))
    shown: list[Rollout] = [
        {**each, "parts": dict(each["parts"] or {}), "pieces": _pieces(each, tokenizers)}
        for each in (chosen[:limit] if limit else chosen)
    ]
    first, hint = shown[0], next(filter(None, (each["hint_text"] for each in shown)), None)
    question, level = first["question"] or "", first["hint_level"] or 0
    return Group(key, question, first["answer"], level, hint, shown, len(rollouts))


def _pieces(rollout: Rollout, tokenizers: Tokenizers) -> Sequence[Piece] | None:
    tokens, logprobs = rollout["token_ids"], rollout["logprobs"]
    tokenizer = tokenizers.of(rollout["policy"]) if tokens and logprobs else None
    return split(tokenizer, rollout["completion"], tokens, logprobs) if tokenizer else None


def _by_reward(rollout: Rollout) -> tuple[float, int]:
    """The best first; what was not judged last."""
    return float("inf") if rollout["reward"] is None else -rollout["reward"], rollout["sample"] or 0


def best_and_worst(ordered: Sequence[T]) -> list[T]:
    """Return rows, given from the best to the worst, as the best, the worst, the second best, the second worst ...

    >>> best_and_worst([1, 2, 3, 4, 5])
    [1, 5, 2, 4, 3]
    """
    front, back = ordered[: -(-len(ordered) // 2)], ordered[-(-len(ordered) // 2) :][::-1]
    paired = [row for pair in zip(front, back, strict=False) for row in pair]
    return [*paired, *front[len(back) :]]


def why(rollout: Rollout, answer: str | None) -> str:
    """Return why a completion was judged so, in a sentence."""
    judge = visible(rollout["verifier"] or "the judge", 80)
    if rollout["error"]:
        return f"{judge}: {visible(rollout['error'], 300)}"
    match rollout["outcome"]:
        case "unparsed":
            return f"{judge} read no answer from it"
        case "correct" | "wrong":
            read = "nothing" if rollout["extracted"] is None else visible(rollout["extracted"], 120)
            expected = "" if answer is None else f"; the answer is {visible(answer, 120)}"
            return f"{judge} read {read}{expected}: {rollout['outcome']}"
        case None if rollout["reward"] is None:
            return "not judged"
        case _:
            return f"{judge}: {rollout['outcome'] or 'a reward without a verdict'}"
