"""The problems and groups that a report shows: those that changed, and those whose rewards differ most.

The table of samples has them in the format of `mlflow.log_table`, with the same name and columns in every training:
MLflow's page of runs puts tables of one name side by side, by any of their columns. The evaluated problems come first,
since they are the same in every run of a recipe. Left out: all other rollouts, which Parquet holds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradus.data.records import Json
from gradus.tasks.formats import visible
from gradus.tasks.inspect.groups import KEY, Group, GroupKey, Rollout, read_groups, why
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
_BARE = "bare and purpose not like 'eval%'"
"""Rollouts of training problems without a hint."""


@dataclass(frozen=True)
class Shown:
    """Groups that belong together, and why they are shown."""

    title: str
    why: str
    groups: Sequence[Group]


Flips = Mapping[str, Any]
"""The problems of a suite that no rollout solved in a round and one did in a later one, or the other way round.

`suite`, `first_round`, `last_round`, `num_solved` and `num_lost`; `shown` are some of them: whether newly solved, and
the group of each round.
"""


def chosen_groups(rows: RunRows, tokenizers: Tokenizers) -> list[Shown]:
    """Return the groups that tell most of a run, each once: of problems that changed, then of unequal rewards."""
    changed = rows.ask(
        f"""
        select problem_id, any_value(change) as moved, min(round) as first, max(round) as last from sampled
        where {_BARE} and correct is not null
        group by problem_id having first < last and moved <> 0
        order by abs(moved) desc, problem_id limit ?
        """,  # noqa: S608 - ours
        [MAX_CHANGED],
    )
    ends = [_group_of(rows, problem, at) for problem, _, *both in changed for at in both]
    unequal = rows.ask(
        f"""
        with of_group as (
            select {KEY}, var_pop(reward) as variance from sampled
            where use is null and purpose not like 'eval%' group by all having count(reward) > 1 and variance > 0
        ),
        newest as (
            select *, row_number() over (partition by problem_id, purpose order by variance desc, round desc) as place
            from of_group
        )
        select {KEY}, variance from newest where place = 1 order by variance desc, round desc, problem_id limit ?
        """,  # noqa: S608 - ours
        [MAX_SPREAD + len(ends)],
    )
    spread = [(key, variance) for *of, variance in unequal if (key := GroupKey(*of)) not in ends][:MAX_SPREAD]
    groups = iter(read_groups(rows, [*ends, *(key for key, _ in spread)], tokenizers, MAX_ROLLOUTS))
    found = [
        Shown(problem, f"pass rate {moved:+.2f} from round {first} to round {last}", [next(groups), next(groups)])
        for problem, moved, first, last in changed
    ]
    for key, variance in spread:
        reason = f"reward variance {variance:.3g} in round {key.round} ({key.purpose})"
        found.append(Shown(key.problem_id, reason, [next(groups)]))
    return found


def _group_of(rows: RunRows, problem: str, at: int, which: str = _BARE, first: str = "") -> GroupKey:
    """The group of a problem in a round; that of the purpose `first` if there are several."""
    row = rows.one(
        f"""
        select {KEY} from sampled where problem_id = ? and round = ? and {which}
        order by purpose <> ?, purpose, group_id limit 1
        """,  # noqa: S608 - ours
        [problem, at, first],
    )
    return GroupKey(*row)


def evaluated_groups(rows: RunRows, tokenizers: Tokenizers) -> list[Group]:
    """Return the groups of the last evaluation, the best and the worst completion of each: the same in every run."""
    found = rows.ask(
        f"""
        select distinct {KEY} from sampled
        where purpose = 'eval' and round = (select max(round) from sampled where purpose = 'eval')
        order by problem_id, group_id limit ?
        """,  # noqa: S608 - ours
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
    keys = [
        _group_of(rows, problem, at, "purpose like 'eval%'", f"eval-{suite}") for problem, *_ in chosen for at in ends
    ]
    groups = read_groups(rows, keys, tokenizers, 1)
    num_solved = sum(row[1] for row in found)
    return {
        "suite": suite,
        "first_round": ends[0],
        "last_round": ends[1],
        "num_solved": num_solved,
        "num_lost": len(found) - num_solved,
        "shown": [
            (row[1], *pair) for row, pair in zip(chosen, zip(groups[::2], groups[1::2], strict=True), strict=True)
        ],
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
