"""The account of a run that continues, by hand: a plan of 9 rollouts in 3 prompts."""

import pyarrow as pa
import pytest

from gradus.data.errors import StageError
from gradus.tasks.runs.records import sentence, total
from gradus.tasks.stages.rollout.resumed import account_of

PLAN = pa.table(
    {"plan_id": [None, None, "c.1"], "group_id": ["a", "b", "b"], "n": pa.array([4, 3, 2], pa.int32())},
)
ROWS = [
    *(("a0", None, "a"), ("a1", None, "a"), ("a2", None, "a"), ("a3", None, "a")),
    *(("b0", None, "b"), ("b1", None, "b"), ("b2", None, "b"), ("c0", "c.1", "b"), ("c1", "c.1", "b")),
]


def rollouts(*rows: tuple[str, str | None, str]) -> pa.Table:
    ids, plan_ids, groups = zip(*rows, strict=True) if rows else ((), (), ())
    columns = {"rollout_id": ids, "plan_id": plan_ids, "group_id": groups}
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def test_a_prompt_is_kept_if_all_its_rollouts_were_there_and_a_row_of_a_wave_is_a_prompt_of_its_own() -> None:
    # Kept: a whole, two of the three of b; the wave's row, which joins the group b, has none.
    found = account_of(PLAN, rollouts(*ROWS[:6]), rollouts(*ROWS))
    assert found["prompts"] == {"planned": 3, "kept": 1, "again": 2, "lost": 0}
    assert found["rollouts"] == {"planned": 9, "kept": 6, "again": 3, "lost": 0}
    assert sentence(total([found, found])) == (
        "resumed: 6 prompts, 2 kept, 4 sampled again, 0 lost (18 rollouts, 12 kept, 6 sampled again, 0 lost)"
    )


def test_a_lost_rollout_is_an_error_though_another_stands_twice() -> None:
    there = rollouts(*ROWS[:5], ROWS[4], *ROWS[6:])  # b0 twice, b1 not at all
    with pytest.raises(
        StageError, match=r"1 of 3 prompts were lost .* 1 of 9 rollouts are in no shard, the first of b;"
    ):
        account_of(PLAN, rollouts(), there)
