"""Groups of rollouts with their texts: what a report and `gradus browse` show side by side, the best and worst first.

rows.ask(...) chooses groups by figures; read_group(rows, key, tokenizers) reads the texts of one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gradus.tasks.inspect.run_rows import Row, RunRows
from gradus.tasks.inspect.token_pieces import Piece, Tokenizers
from gradus.tasks.tracking.report import visible

T = TypeVar("T")


@dataclass(frozen=True)
class GroupKey:
    """Names a group within a run; `group_id` is null in files of users."""

    round: int
    purpose: str
    problem_id: str
    group_id: str | None
    rollouts_artifact: str


@dataclass(frozen=True)
class Rollout:
    """A completion and how it was judged and learnt from."""

    rollout_id: str
    sample: int | None
    completion: str
    tokens: int | None
    finish_reason: str | None
    reward: float | None
    parts: Mapping[str, float | None]
    correct: bool | None
    outcome: str | None
    extracted: str | None
    error: str | None
    verifier: str | None
    advantage: float | None
    weight: float | None
    mismatch: float | None
    pieces: Sequence[Piece] | None
    """The completion token by token; None without log-probs or a tokenizer."""


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
        return sum(rollout.correct is True for rollout in self.rollouts)


_TEXTS = """
select s.rollout_id, s.sample, s.completion, s.completion_tokens, s.finish_reason, s.reward, s.parts, s.correct,
    s.outcome, s.extracted, s.error, s.verifier, s.question, s.answer, s.hint_level, s.policy
from samples s
where s.rollouts_artifact = ? and s.purpose = ? and s.round = ? and s.problem_id = ?
    and s.group_id is not distinct from ?
"""
_TOKENS = """
select rollout_id, completion_tokens, logprobs, hint_text from rollouts
where artifact = ? and problem_id = ? and group_id is not distinct from ?
"""
_LEARNT = """
select rollout_id, advantage, weight, mismatch from sampled
where rollouts_artifact = ? and purpose = ? and round = ? and problem_id = ? and group_id is not distinct from ?
"""


def read_group(rows: RunRows, key: GroupKey, tokenizers: Tokenizers, limit: int = 0) -> Group:
    """Return a group with its texts, of more than `limit` rollouts the best and the worst half; 0 is all of them."""
    which = [key.rollouts_artifact, key.purpose, key.round, key.problem_id, key.group_id]
    texts = rows.ask(_TEXTS, which)
    tokens = {row[0]: row[1:] for row in rows.ask(_TOKENS, [which[0], *which[3:]])}
    learnt = {row[0]: row[1:] for row in rows.ask(_LEARNT, which)}
    chosen = best_and_worst(sorted(texts, key=_by_reward))
    shown = chosen[:limit] if limit else chosen
    first = shown[0]
    found: list[Rollout] = []
    hint: str | None = None
    for row in shown:
        ids, logprobs, hint_text = tokens.get(row[0], (None, None, None))
        hint = hint or hint_text
        split = tokenizers.of(row[15]) if ids and logprobs else None
        pieces = split.split(row[2] or "", ids, logprobs) if split else None
        parts = {str(name): value for name, value in dict(row[6] or {}).items()}
        about = learnt.get(row[0], (None, None, None))
        values: Row = (*row[:2], row[2] or "", *row[3:6], parts, *row[7:12], *about, pieces)
        found.append(Rollout(*values))
    return Group(key, first[12] or "", first[13], first[14] or 0, hint, found, len(texts))


def _by_reward(row: Row) -> tuple[float, int]:
    """The best first; what was not judged last."""
    sample, reward = row[1], row[5]
    return float("inf") if reward is None else -reward, sample or 0


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
    judge = visible(rollout.verifier or "the judge", 80)
    if rollout.error:
        return f"{judge}: {visible(rollout.error, 300)}"
    match rollout.outcome:
        case "unparsed":
            return f"{judge} read no answer from it"
        case "correct" | "wrong":
            read = "nothing" if rollout.extracted is None else visible(rollout.extracted, 120)
            expected = "" if answer is None else f"; the answer is {visible(answer, 120)}"
            return f"{judge} read {read}{expected}: {rollout.outcome}"
        case None if rollout.reward is None:
            return "not judged"
        case _:
            return f"{judge}: {rollout.outcome or 'a reward without a verdict'}"
