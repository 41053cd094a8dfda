"""Groups of rollouts with their texts: what a report and `gradus browse` show side by side, best and worst first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.tasks.formats import visible
from gradus.tasks.inspect.run_rows import RunRows
from gradus.tasks.inspect.token_pieces import Piece, Tokenizers, split

KEY = "round, purpose, problem_id, group_id, rollouts_artifact"
"""The columns that name a group within a run."""
MAX_ROLLOUTS = 2**31
"""More than a group has: no limit."""


@dataclass(frozen=True)
class GroupKey:
    """Values of KEY; `group_id` is null in files of users."""

    round: int
    purpose: str
    problem_id: str
    group_id: str | None
    rollouts_artifact: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "GroupKey":
        """Return the key of the group that a row is of, by the names of its columns."""
        return cls(*(row[name] for name in KEY.split(", ")))


Rollout = Mapping[str, Any]
"""A completion and how it was judged and learnt from: what the query below selects, and `pieces`, the completion token
by token; None without log-probs or a tokenizer."""


@dataclass(frozen=True)
class Group:
    """A problem's rollouts, the best, the worst, then the others by their reward."""

    key: GroupKey
    question: str
    """The problem's; of rows with a prompt of their own, such as a judge's, the last message of that."""
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


_ROLLOUTS = """
with texts as (
    select {key}, rollout_id, sample, policy, coalesce(completion, '') as completion, completion_tokens as tokens,
        finish_reason, reward, parts, correct, outcome, extracted, error, verifier, question, answer, hint_level
    from samples where rollouts_artifact in ({artifacts}) and problem_id in ({problems})
        and (rollouts_artifact, problem_id) in ({pairs})
),
token_rows as (
    select
        rollout_id, completion_tokens as token_ids, logprobs, hint_text, messages[-1].content as asked, parent, recall
    from rollouts
    where artifact in ({artifacts}) and problem_id in ({problems})
),
learnt as (
    select rollout_id, round, purpose, advantage, weight, mismatch from sampled
    where rollouts_artifact in ({artifacts}) and problem_id in ({problems})
),
ranked as (
    select *, count(*) over (partition by {key}) as num_rollouts,
        row_number() over (partition by {key} order by reward desc nulls last, coalesce(sample, 0)) as rank
    from texts left join token_rows using (rollout_id) left join learnt using (rollout_id, round, purpose)
)
select *, least(2 * rank - 1, 2 * (num_rollouts - rank + 1)) as place from ranked where place <= ? order by place
"""
"""The rollouts of groups: the best, the worst, the second best, the second worst ... What was not judged counts as bad.

Arrow is asked three times for the row groups that hold these artifacts and problems, which no join alone would do.
"""


def read_groups(rows: RunRows, keys: Sequence[GroupKey], tokenizers: Tokenizers, limit: int = 0) -> list[Group]:
    """Return groups with their texts, in order; of more than `limit` rollouts the best and the worst half; 0 is all.

    Texts and tokens are read once for all groups, which takes about as long as for one.
    """
    if not keys:
        return []
    pairs = {(key.rollouts_artifact, key.problem_id) for key in keys}
    artifacts, problems = map(set, zip(*pairs, strict=True))
    marks = {name: ", ".join("?" * len(values)) for name, values in (("artifacts", artifacts), ("problems", problems))}
    marks["pairs"] = ", ".join(["(?, ?)"] * len(pairs))
    both = [*artifacts, *problems]
    values = [*both, *(value for pair in pairs for value in pair), *both, *both, limit or MAX_ROLLOUTS]
    found: dict[GroupKey, list[Rollout]] = {key: [] for key in keys}
    for row in rows.records(_ROLLOUTS.format(key=KEY, **marks), values):
        key = GroupKey.of(row)
        if key in found:
            found[key].append({**row, "parts": dict(row["parts"] or {}), "pieces": _pieces(row, tokenizers)})
    return [_group(key, found[key]) for key in keys]


def read_group(rows: RunRows, key: GroupKey, tokenizers: Tokenizers, limit: int = 0) -> Group:
    """Return one group, as `read_groups` does."""
    return read_groups(rows, [key], tokenizers, limit)[0]


def _group(key: GroupKey, shown: Sequence[Rollout]) -> Group:
    first, hint = shown[0], next(filter(None, (each["hint_text"] for each in shown)), None)
    question, level = first["asked"] or first["question"] or "", first["hint_level"] or 0
    return Group(key, question, first["answer"], level, hint, shown, first["num_rollouts"])


def _pieces(rollout: Rollout, tokenizers: Tokenizers) -> Sequence[Piece] | None:
    tokens, logprobs = rollout["token_ids"], rollout["logprobs"]
    tokenizer = tokenizers.of(rollout["policy"]) if tokens and logprobs else None
    return split(tokenizer, rollout["completion"], tokens, logprobs) if tokenizer else None


def begun(rollout: Rollout) -> str:
    """Return the stored rollout that a completion continues or is once more, in words; empty if there is none."""
    for name, words in (("parent", "continues"), ("recall", "taken up again from")):
        if rollout[name]:
            return f"{words} {visible(rollout[name], 120)}"
    return ""


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
