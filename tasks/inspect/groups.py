"""Groups of rollouts with their texts, best and worst first, and lists of rounds, problems and groups in pages.

    listing = Listing(rows, "groups", {"round": 3, "purpose": "train"}, condition="reward < 0.5")
    listing.page(offset=0)

A report and `gradus browse` show them. A filter chooses rollouts; a round, problem or group is listed with those of its
rollouts that are chosen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradus.tasks.formats import count, number, share, visible
from gradus.tasks.inspect.sql_views import Row, RunRows
from gradus.tasks.inspect.token_pieces import Piece, Tokenizers, split

KEY = "round, purpose, problem_id, group_id, rollouts_artifact"
"""The columns that name a group within a run."""
PAGE_ROWS = 200
EVERYTHING = "true"


Line = tuple[dict[str, Any], tuple[str, ...]]
"""The round with its purpose, problem or group that a line is of, by column; and its cells."""


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


def read_groups(rows: RunRows, keys: Sequence[GroupKey], limit: int = 0) -> list[Group]:
    """Return groups with texts, read together; of more than `limit` rollouts the best and worst half; 0 is all."""
    if not keys:
        return []
    pairs = {(key.rollouts_artifact, key.problem_id) for key in keys}
    artifacts, problems = map(set, zip(*pairs, strict=True))
    marks = {name: ", ".join("?" * len(values)) for name, values in (("artifacts", artifacts), ("problems", problems))}
    marks["pairs"] = ", ".join(["(?, ?)"] * len(pairs))
    both = [*artifacts, *problems]
    values = [*both, *(value for pair in pairs for value in pair), *both, *both, limit or 2**31]
    found: dict[GroupKey, list[Rollout]] = {key: [] for key in keys}
    for row in rows.records(_ROLLOUTS.format(key=KEY, **marks), values):
        key = GroupKey.of(row)
        if key in found:
            found[key].append({**row, "parts": dict(row["parts"] or {}), "pieces": _pieces(row, rows.tokenizers)})
    return [_group(key, found[key]) for key in keys]


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
    begins = {"continues": rollout["parent"], "taken up again from": rollout["recall"]}
    return next((f"{words} {visible(stored, 120)}" for words, stored in begins.items() if stored), "")


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


@dataclass(frozen=True)
class _View:
    """Columns, what a line is of, and the orders by name."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    orders: Mapping[str, str]
    condition: str = EVERYTHING
    """Rows that its lines count."""


COLUMNS: Mapping[str, tuple[str, Callable[[Any], str] | None]] = {
    "purpose": ("purpose", None),
    "problem": ("problem_id", None),
    "round": ("round", str),
    "rounds": ("count(distinct round)", count),
    "groups": ("count(distinct (rollouts_artifact, problem_id, group_id))", count),
    "rollouts": ("count(*)", count),
    "n": ("count(*)", count),
    "right": ("avg(correct::int)", lambda value: share(value, 0)),
    "reward": ("avg(reward)", number),
    "std": ("stddev_pop(reward)", number),
    "change": ("any_value(change)", lambda value: "-" if value is None else f"{100 * value:+.0f}"),
    "hint": ("max(hint_level)", str),
    "hinted": ("count(*) filter (hint_level > 0)", count),
    "tokens": ("avg(tokens)", number),
}
"""Each column as SQL on the rows of `sampled` in a line, and the format of its numbers; None for text."""

VIEWS: Mapping[str, _View] = {
    "rounds": _View(
        ("round", "purpose", "groups", "rollouts", "right", "reward", "hinted", "tokens"),
        ("round", "purpose"),
        {"round": "round, purpose", "reward": "avg(reward), round, purpose"},
    ),
    "problems": _View(
        ("problem", "rounds", "rollouts", "right", "reward", "change", "tokens"),
        ("problem_id",),
        {
            "change": "abs(any_value(change)) desc nulls last, problem_id",
            "hardest": "avg(correct::int), problem_id",
            "name": "problem_id",
        },
        "use is null",
    ),
    "groups": _View(
        ("round", "purpose", "problem", "n", "right", "reward", "std", "hint", "tokens"),
        ("round", "purpose", "problem_id", "group_id", "rollouts_artifact"),
        {
            "round": "round, purpose, problem_id, group_id",
            "std": "stddev_pop(reward) desc nulls last, round, problem_id, group_id",
            "reward": "avg(reward), round, problem_id, group_id",
            "length": "avg(tokens) desc, round, problem_id, group_id",
        },
    ),
}


@dataclass(frozen=True)
class Listing:
    """A view of the rows that have the values of a scope, ordered; `condition` is what `RunRows.matching` returned."""

    rows: RunRows
    view: str
    scope: Mapping[str, Any] = field(default_factory=dict[str, Any])
    condition: str = EVERYTHING
    order: str = ""

    @property
    def columns(self) -> dict[str, bool]:
        """Names of the columns, and whether each ends at the right, as numbers do."""
        return {name: COLUMNS[name][1] is not None for name in VIEWS[self.view].columns}

    @property
    def orders(self) -> list[str]:
        """Names of the orders that the view has, the usual one first."""
        return list(VIEWS[self.view].orders)

    @property
    def ordered_by(self) -> str:
        """Name of the order."""
        return self.order or self.orders[0]

    def count(self) -> int:
        """Return how many lines there are."""
        select, values = self._select()
        return self.rows.one(f"select count(*) from ({select})", values)[0]  # noqa: S608 - the user's own filter

    def counted(self, num_lines: int) -> str:
        """Return how many lines there are in words; a round has a line for each purpose."""
        if self.view != "rounds":
            return f"{num_lines:,} {self.view}"
        select, values = self._select()
        (num_rounds,) = self.rows.one(f"select count(distinct round) from ({select}) where round > 0", values)  # noqa: S608 - as above
        return f"{num_rounds:,} round{'s' * (num_rounds != 1)} in {num_lines:,} lines" if num_lines else "0 rounds"

    def page(self, offset: int = 0) -> list[Line]:
        """Return up to PAGE_ROWS lines."""
        select, values = self._select()
        order = VIEWS[self.view].orders[self.ordered_by]
        found = self.rows.ask(f"{select} order by {order} limit {PAGE_ROWS} offset {offset}", values)
        return [self._line(row) for row in found]

    def _line(self, row: Row) -> Line:
        keys = VIEWS[self.view].keys
        looks = (COLUMNS[name][1] for name in self.columns)
        cells = tuple(look(value) if look else value for look, value in zip(looks, row[len(keys) :], strict=True))
        return dict(zip(keys, row, strict=False)), cells

    def _select(self) -> tuple[str, list[object]]:
        where = " and ".join([self.condition, VIEWS[self.view].condition, *(f"{name} = ?" for name in self.scope)])
        keys = ", ".join(VIEWS[self.view].keys)
        cells = ", ".join(f"{COLUMNS[name][0]} as cell_{place}" for place, name in enumerate(self.columns))
        return f"select {keys}, {cells} from sampled where {where} group by {keys}", list(self.scope.values())  # noqa: S608 - as above


def groups_of(rows: RunRows, problem: str) -> list[GroupKey]:
    """Return the groups of a problem by round."""
    query = f"select distinct {KEY} from sampled where problem_id = ? order by round, purpose, group_id"  # noqa: S608 - ours
    return [GroupKey(*row) for row in rows.ask(query, [problem])]
