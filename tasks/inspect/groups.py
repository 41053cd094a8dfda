"""Groups of rollouts with their texts: what a report and `gradus browse` show side by side, the best and worst first.

rows.ask(...) chooses groups by figures; read_groups(rows, keys, tokenizers) reads their texts.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gradus.tasks.formats import visible
from gradus.tasks.inspect.run_rows import Row, RunRows
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
select round, purpose, problem_id, group_id, rollouts_artifact, rollout_id, sample, completion,
    completion_tokens, finish_reason, reward, parts, correct, outcome, extracted, error, verifier,
    question, answer, hint_level, policy
from samples where rollouts_artifact in ({artifacts}) and problem_id in ({problems})
"""
_TOKENS = """
select rollout_id, completion_tokens, logprobs, hint_text from rollouts
where artifact in ({artifacts}) and problem_id in ({problems})
"""
_LEARNT = """
select rollout_id, round, purpose, advantage, weight, mismatch from sampled
where rollouts_artifact in ({artifacts}) and problem_id in ({problems})
"""


def read_groups(rows: RunRows, keys: Sequence[GroupKey], tokenizers: Tokenizers, limit: int = 0) -> list[Group]:
    """Return groups with their texts, in order; of more than `limit` rollouts the best and the worst half; 0 is all.

    Texts and tokens are read once for all groups, which takes about as long as for one.
    """
    if not keys:
        return []
    artifacts, problems = ({getattr(key, name) for key in keys} for name in ("rollouts_artifact", "problem_id"))
    names, values = {"artifacts": _marks(artifacts), "problems": _marks(problems)}, [*artifacts, *problems]
    found: dict[GroupKey, list[Row]] = {}
    for row in rows.ask(_TEXTS.format(**names), values):
        found.setdefault(GroupKey(*row[:5]), []).append(row)
    tokens = {row[0]: row[1:] for row in rows.ask(_TOKENS.format(**names), values)}
    learnt = {row[:3]: row[3:] for row in rows.ask(_LEARNT.format(**names), values)}
    return [_group(key, found[key], _Details(tokens, learnt, tokenizers), limit) for key in keys]


def read_group(rows: RunRows, key: GroupKey, tokenizers: Tokenizers, limit: int = 0) -> Group:
    """Return one group, as `read_groups` does."""
    return read_groups(rows, [key], tokenizers, limit)[0]


def _marks(values: Collection[str]) -> str:
    """A question mark for each value: Arrow is asked for the row groups that hold them, which no join would do."""
    return ", ".join("?" * len(values))


@dataclass(frozen=True)
class _Details:
    tokens: Mapping[str, Row]
    """Tokens, log-probs and hint by rollout."""
    learnt: Mapping[Row, Row]
    """Advantage, weight and mismatch by rollout, round and purpose."""
    tokenizers: Tokenizers


def _group(key: GroupKey, texts: Sequence[Row], details: _Details, limit: int) -> Group:
    chosen = best_and_worst(sorted(texts, key=_by_reward))
    shown = chosen[:limit] if limit else chosen
    hints = [details.tokens.get(row[5], (None, None, None))[2] for row in shown]
    *_, question, answer, hint_level, _ = shown[0]
    rollouts = [_rollout(key, row, details) for row in shown]
    return Group(key, question or "", answer, hint_level or 0, next(filter(None, hints), None), rollouts, len(texts))


def _rollout(key: GroupKey, row: Row, details: _Details) -> Rollout:
    rollout_id, sample, completion, *figures = row[5:17]
    ids, logprobs, _ = details.tokens.get(rollout_id, (None, None, None))
    tokenizer = details.tokenizers.of(row[20]) if ids and logprobs else None
    pieces = split(tokenizer, completion or "", ids, logprobs) if tokenizer else None
    num_tokens, finish_reason, reward, parts, *judged = figures
    named = {str(name): value for name, value in dict(parts or {}).items()}
    learnt = details.learnt.get((rollout_id, key.round, key.purpose), (None, None, None))
    values: Row = (sample, completion or "", num_tokens, finish_reason, reward, named, *judged, *learnt, pieces)
    return Rollout(rollout_id, *values)


def _by_reward(row: Row) -> tuple[float, int]:
    """The best first; what was not judged last."""
    sample, reward = row[6], row[10]
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
