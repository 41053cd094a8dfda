"""The problems and groups that a report shows: those that changed, and those whose rewards differ most.

The table of samples has them in the format of `mlflow.log_table`, with the same name and columns in every training:
MLflow's page of runs puts tables of one name side by side, by any of their columns. The evaluated problems come first,
since they are the same in every run of a recipe. Left out: all other rollouts, which Parquet holds.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

from gradus.data.records import Json
from gradus.tasks.formats import visible
from gradus.tasks.inspect.groups import Group, GroupKey, Rollout, read_groups, why
from gradus.tasks.inspect.report.figures import evaluations
from gradus.tasks.inspect.run_rows import RunRows
from gradus.tasks.inspect.token_pieces import Tokenizers

MAX_CHANGED = 6
"""Problems of which the first and the last group are shown."""
MAX_SPREAD = 8
"""Groups of the largest reward variance."""
MAX_FLIPPED = 12
"""Problems newly solved, and newly lost, with their texts."""
MAX_EVALUATED = 48
"""Evaluated problems, the first by name, in the table of samples."""
MAX_ROLLOUTS = 8
"""Rollouts of a group that are shown."""
COLUMNS = (
    *("problem_id", "purpose", "round", "place", "question", "answer", "hint", "completion"),
    *("reward", "parts", "advantage", "tokens", "verdict"),
)
_MAX_CHARS = 2000
_BARE = "hint_level = 0 and purpose <> 'given' and purpose not like 'eval%'"
"""Rollouts of training problems without a hint."""


@dataclass(frozen=True)
class Shown:
    """Groups that belong together, and why they are shown."""

    title: str
    why: str
    groups: Sequence[Group]


class Flips(TypedDict):
    """The problems of a suite that no rollout solved in a round and one did in a later one, or the other way round.

    `shown` are some of them: whether newly solved, and the group of each round.
    """

    suite: str
    first_round: int
    last_round: int
    num_solved: int
    num_lost: int
    shown: Sequence[tuple[bool, Group, Group]]


def chosen_groups(rows: RunRows, tokenizers: Tokenizers) -> list[Shown]:
    """Return the groups that tell most of a run; each once."""
    seen: set[GroupKey] = set()
    return [*_changed(rows, tokenizers, seen), *_spread(rows, tokenizers, seen)]


def _changed(rows: RunRows, tokenizers: Tokenizers, seen: set[GroupKey]) -> Iterator[Shown]:
    """The training problems whose pass rate without hints changed most between their first and their last round."""
    problems = rows.ask(
        f"""
        select problem_id, any_value(change) as moved, min(round) as first, max(round) as last from sampled
        where {_BARE} and correct is not null
        group by problem_id having first < last and moved <> 0
        order by abs(moved) desc, problem_id limit ?
        """,  # noqa: S608 - ours
        [MAX_CHANGED],
    )
    keys = [_group_of(rows, problem, at) for problem, _, *ends in problems for at in ends]
    seen.update(keys)
    groups = read_groups(rows, keys, tokenizers, MAX_ROLLOUTS)
    for place, (problem, moved, first, last) in enumerate(problems):
        reason = f"pass rate {moved:+.2f} from round {first} to round {last}"
        yield Shown(problem, reason, groups[2 * place : 2 * place + 2])


def _group_of(rows: RunRows, problem: str, at: int, which: str = _BARE, first: str = "") -> GroupKey:
    """The group of a problem in a round; that of the purpose `first` if there are several."""
    row = rows.one(
        f"""
        select round, purpose, problem_id, group_id, rollouts_artifact from sampled
        where problem_id = ? and round = ? and {which} order by purpose <> ?, purpose, group_id limit 1
        """,  # noqa: S608 - ours
        [problem, at, first],
    )
    return GroupKey(*row)


def _spread(rows: RunRows, tokenizers: Tokenizers, seen: set[GroupKey]) -> Iterator[Shown]:
    """The groups of the largest reward variance, the newest of equal ones first, one of each problem and purpose."""
    found = rows.ask(
        """
        with of_group as (
            select round, purpose, problem_id, group_id, rollouts_artifact, var_pop(reward) as variance from sampled
            where purpose not like 'eval%' group by all having count(reward) > 1 and variance > 0
        ),
        newest as (
            select *, row_number() over (partition by problem_id, purpose order by variance desc, round desc) as place
            from of_group
        )
        select round, purpose, problem_id, group_id, rollouts_artifact, variance from newest where place = 1
        order by variance desc, round desc, problem_id limit ?
        """,
        [MAX_SPREAD + len(seen)],
    )
    fresh = [(GroupKey(*row[:5]), row[5]) for row in found if GroupKey(*row[:5]) not in seen]
    groups = read_groups(rows, [key for key, _ in fresh[:MAX_SPREAD]], tokenizers, MAX_ROLLOUTS)
    for group, (key, variance) in zip(groups, fresh, strict=False):
        yield Shown(key.problem_id, f"reward variance {variance:.3g} in round {key.round} ({key.purpose})", [group])


def evaluated_groups(rows: RunRows, tokenizers: Tokenizers) -> list[Group]:
    """Return the groups of the last evaluation, the best and the worst completion of each: the same in every run."""
    found = rows.ask(
        """
        with newest as (select max(round) as round from sampled where purpose = 'eval')
        select distinct round, purpose, problem_id, group_id, rollouts_artifact
        from sampled join newest using (round) where purpose = 'eval' order by problem_id, group_id limit ?
        """,
        [MAX_EVALUATED],
    )
    return read_groups(rows, [GroupKey(*row) for row in found], tokenizers, 2)


def flips(rows: RunRows, tokenizers: Tokenizers) -> list[Flips]:
    """Return for each suite what was newly solved and lost between its first and its last evaluation."""
    artifacts: dict[str, dict[int, str]] = {}
    for at, artifact, each in evaluations(rows):
        artifacts.setdefault(each.get("suite", ""), {})[at] = artifact
    return [_flips_of(rows, tokenizers, suite, found) for suite, found in artifacts.items() if len(found) > 1]


def _flips_of(rows: RunRows, tokenizers: Tokenizers, suite: str, artifacts: dict[int, str]) -> Flips:
    ends = min(artifacts), max(artifacts)
    found = rows.ask(
        """
        select problem_id, later.k > 0 as solved, abs(later.k / later.n - earlier.k / earlier.n) as change
        from evaluations earlier join evaluations later using (problem_id)
        where earlier.artifact = ? and later.artifact = ? and earlier.n > 0 and later.n > 0
            and (earlier.k = 0) <> (later.k = 0)
        order by change desc, problem_id
        """,
        [artifacts[at] for at in ends],
    )
    chosen = [row for wanted in (True, False) for row in [r for r in found if r[1] is wanted][:MAX_FLIPPED]]
    first = f"eval-{suite}"
    keys = [_group_of(rows, problem, at, "purpose like 'eval%'", first) for problem, *_ in chosen for at in ends]
    groups = read_groups(rows, keys, tokenizers, 1)
    shown = list(zip((row[1] for row in chosen), groups[::2], groups[1::2], strict=True))
    num_solved = sum(row[1] for row in found)
    return {
        "suite": suite,
        "first_round": ends[0],
        "last_round": ends[1],
        "num_solved": num_solved,
        "num_lost": len(found) - num_solved,
        "shown": shown,
    }


def sample_table(evaluated: Iterable[Group], chosen: Sequence[Shown]) -> str:
    """Return the table as JSON: evaluated problems, then the groups that the report shows."""
    groups = [*evaluated, *(group for shown in chosen for group in shown.groups)]
    rows = [_row(group, place, each) for group in groups for place, each in enumerate(group.rollouts)]
    return json.dumps({"columns": COLUMNS, "data": rows}, allow_nan=False)


def _row(group: Group, place: int, rollout: Rollout) -> list[Json]:
    """A completion; the best and the worst of its group by that name, the others by their number."""
    last = group.num_rollouts > 1 and place == 1
    return [
        visible(group.key.problem_id, 200),
        visible(group.key.purpose, 60),
        group.key.round,
        "worst" if last else "best" if place == 0 else str(place + 1),
        visible(group.question, _MAX_CHARS),
        visible(group.answer or "", _MAX_CHARS),
        visible(group.hint_text or "", _MAX_CHARS),
        visible(rollout["completion"], _MAX_CHARS),
        rollout["reward"],
        ", ".join(f"{visible(name, 60)} {value}" for name, value in rollout["parts"].items()),
        rollout["advantage"],
        rollout["tokens"],
        why(rollout, group.answer),
    ]
