"""The table of samples of a run, in the format of `mlflow.log_table`: the same name and columns in every training.

MLflow's page of runs puts tables of one name side by side, by any of their columns. The evaluated problems come first,
since they are the same in every run of a recipe. Left out: all other rollouts, which Parquet holds.
"""

import json
from collections.abc import Iterable, Sequence

from gradus.data.records import Json
from gradus.tasks.formats import visible
from gradus.tasks.inspect.groups import Group, Rollout, why
from gradus.tasks.inspect.report.choices import Shown

COLUMNS = (
    *("problem_id", "purpose", "round", "place", "question", "answer", "hint", "completion"),
    *("reward", "parts", "advantage", "tokens", "verdict"),
)
_MAX_CHARS = 2000


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
