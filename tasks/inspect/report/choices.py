"""The problems and groups that a report shows: those that changed, and those whose rewards differ most.

The table of samples has them in the format of `mlflow.log_table`, with the same name and columns in every training:
MLflow's page of runs puts tables of one name side by side, by any of their columns. The evaluated problems come first,
since they are the same in every run of a recipe. Left out: all other rollouts, which Parquet holds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

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


class Shown(NamedTuple):
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
        """
        select change, earliest, latest from (
            select any_value(change) as change, arg_min(each, (round, purpose, group_id)) as earliest,
                arg_min(each, (-round, purpose, group_id)) as latest
            from sampled each where bare and purpose not like 'eval%' and correct is not null group by problem_id
        ) where earliest.round < latest.round and change <> 0 order by abs(change) desc, latest.problem_id limit ?
        """,
        [MAX_CHANGED],
    )
    unequal = rows.ask(
        f"""
        select {KEY}, var_pop(reward) as variance from sampled where use is null and purpose not like 'eval%'
        group by {KEY} having count(reward) > 1 and variance > 0
        qualify row_number() over (partition by problem_id, purpose order by variance desc, round desc) = 1
        order by variance desc, round desc, problem_id limit ?
        """,  # noqa: S608 - ours
        [MAX_SPREAD + 2 * len(changed)],
    )
    ends = [GroupKey.of(each) for _, *both in changed for each in both]
    spread = [(key, variance) for *of, variance in unequal if (key := GroupKey(*of)) not in ends][:MAX_SPREAD]
    groups = iter(read_groups(rows, [*ends, *(key for key, _ in spread)], tokenizers, MAX_ROLLOUTS))
    found: list[Shown] = []
    for moved, first, last in changed:
        reason = f"pass rate {moved:+.2f} from round {first['round']} to round {last['round']}"
        found.append(Shown(first["problem_id"], reason, [next(groups), next(groups)]))
    for key, variance in spread:
        reason = f"reward variance {variance:.3g} in round {key.round} ({key.purpose})"
        found.append(Shown(key.problem_id, reason, [next(groups)]))
    return found


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
    first, last = min(artifacts), max(artifacts)
    found = rows.ask(
        """
        with flipped as (
            select problem_id, later.k > 0 as solved, abs(later.k / later.n - earlier.k / earlier.n) as change
            from evaluations earlier join evaluations later using (problem_id)
            where earlier.artifact = ? and later.artifact = ? and earlier.n > 0 and later.n > 0
                and (earlier.k = 0) <> (later.k = 0)
        ),
        groups as (
            select problem_id, round, arg_min(each, (purpose <> ?, purpose, group_id)) as group_of
            from sampled each where purpose like 'eval%' group by all
        )
        select solved, earlier.group_of, later.group_of from flipped
        join groups earlier on earlier.problem_id = flipped.problem_id and earlier.round = ?
        join groups later on later.problem_id = flipped.problem_id and later.round = ?
        order by change desc, flipped.problem_id
        """,
        [artifacts[first], artifacts[last], f"eval-{suite}", first, last],
    )
    chosen = [row for wanted in (True, False) for row in [r for r in found if r[0] is wanted][:MAX_FLIPPED]]
    groups = iter(read_groups(rows, [GroupKey.of(each) for _, *both in chosen for each in both], tokenizers, 1))
    num_solved = sum(row[0] for row in found)
    return {
        "suite": suite,
        "first_round": first,
        "last_round": last,
        "num_solved": num_solved,
        "num_lost": len(found) - num_solved,
        "shown": [(solved, next(groups), next(groups)) for solved, *_ in chosen],
    }


def sample_table(evaluated: Iterable[Group], chosen: Sequence[Shown]) -> str:
    """Return the table as JSON: evaluated problems, then the groups that the report shows."""
    groups = [*evaluated, *(group for shown in chosen for group in shown.groups)]
    rows = [_row(group, place, each) for group in groups for place, each in enumerate(group.rollouts)]
    return json.dumps({"columns": COLUMNS, "data": rows}, allow_nan=False)


def _row(group: Group, place: int, rollout: Rollout) -> list[Json]:
    """A completion; the best and the worst of its group by that name, the others by their number."""
    last = group.num_rollouts > 1 and place == 1
    texts = (group.question, group.answer, group.hint_text, rollout["completion"])
    return [
        visible(group.key.problem_id, 200),
        visible(group.key.purpose, 60),
        group.key.round,
        "worst" if last else "best" if place == 0 else str(place + 1),
        *(visible(text or "", _MAX_CHARS) for text in texts),
        rollout["reward"],
        ", ".join(f"{visible(name, 60)} {value}" for name, value in rollout["parts"].items()),
        rollout["advantage"],
        rollout["tokens"],
        why(rollout, group.answer),
    ]
