"""Stage shape: what an update learns from, made by the stage or in passing, with problems and plans at hand."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rounds import ShapingConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.shape import run

MINE = '''
import numpy as np
from gradus.components import component

@component("shape", needs=("reward", "problem.level", "plan.budget", "parts.short", "length"))
def graded(rows, rng, *, scale: float = 2.0):
    """Weigh rows by the level of their problem."""
    return {
        "reward": rows["reward"] * scale + rows["parts.short"],
        "weight": rows["problem.level"] + rows["plan.budget"],
        "taken": rows["length"] > 1,
        "reason": "one token",
        "drawn": rng.random(rows.num_rows),
    }

@component("shape", needs=("reward",))
def odd(rows):
    """Return what none can."""
    return {"reward": rows["reward"][:1]}

@component("shape", needs=("recall", "replaces", "plan.branch_at"))
def fresh(rows):
    """Count rows that take up none, take no place and continue none."""
    return {"fresh": [recall is None and np.isnan(place) and np.isnan(cut)
                      for recall, place, cut in zip(rows["recall"], rows["replaces"], rows["plan.branch_at"])]}

@component("shape", needs=())
def listed(rows):
    """Return no dict."""
    return [1.0]
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def shaped(tmp_path: Path, *, beside: bool = True, **config: Any) -> tuple[list[dict[str, Any]], StageResult]:
    """The batch of two groups of two rows."""
    store, ids = Store(tmp_path / "lake"), ["a:0", "a:1", "b:0", "b:1"]
    tables = {
        "rollouts": {
            "rollout_id": ids,
            "problem_id": list("aabb"),
            "group_id": ["ga", "ga", "gb", "gb"],
            "completion": list("wxyz"),
            "completion_tokens": pa.array([[1], [1, 2], [1, 2, 3], None], pa.list_(pa.int32())),
        },
        "scores": {
            "rollout_id": ids[::-1],
            "problem_id": list("bbaa"),
            "reward": [0.0, 1.0, 0.5, 1.0],
            "components": pa.array([[("short", i / 4)] for i in range(4)], pa.map_(pa.string(), pa.float64())),
        },
        "problems": {
            "problem_id": ["b", "a"],
            "question": ["b?", "a?"],
            "extra": ['{"level": 3}', '{"level": 1}'],
        },
        "plan": {"problem_id": ["a", "b"], "group_id": ["ga", "gb"], "n": [2, 2], "budget": [10, 20]},
    }
    chosen = tables if beside else {role: tables[role] for role in ("rollouts", "scores")}
    inputs = {role: (store.put(role, pa.table(columns)),) for role, columns in chosen.items()}
    writer = store.writer(Ref("batch", "e" * 32))
    ctx = StageContext(store, inputs, writer, 7, Warm(), lambda frac, text="": None, {})
    result = run(ctx, ShapingConfig.model_validate(config))
    writer.commit()
    return store.read(writer.ref).to_pylist(), result


def test_a_users_shape_by_hand(tmp_path: Path, mine: str) -> None:
    rows, result = shaped(tmp_path, shapes=[f"{mine}:graded"], carried=["problem.level", "parts.short"])
    assert [row["reward"] for row in rows] == [2 * 1.0 + 0.75, 2 * 0.5 + 0.5, 2 * 1.0 + 0.25, 0.0]
    assert [row["weight"] for row in rows] == [11, 11, 23, 23]
    assert [row["taken"] for row in rows] == [False, True, True, False]  # of unknown length is not longer
    assert [row["reason"] for row in rows] == ["one token", None, None, "one token"]
    assert [row["problem.level"] for row in rows] == [1, 1, 3, 3]
    assert [row["parts.short"] for row in rows] == [0.75, 0.5, 0.25, 0.0]
    assert result.summary == {"rows": 4, "taken": 2, "left_out": {"one token": 2}}
    assert result.metrics["batch/taken_frac"] == 0.5
    assert result.metrics["batch/reward_mean"] == pytest.approx((1.5 + 2.25) / 2)
    assert 0 < result.metrics["batch/graded_drawn"] < 1
    assert shaped(tmp_path / "again", shapes=[f"{mine}:graded"])[1].metrics == result.metrics


def test_a_declared_column_that_no_rollout_of_the_round_has_is_null(tmp_path: Path, mine: str) -> None:
    assert shaped(tmp_path, shapes=[f"{mine}:fresh"])[1].metrics["batch/fresh_fresh"] == 1.0


def test_what_cannot_be_shaped_is_one_sentence(tmp_path: Path, mine: str) -> None:
    with pytest.raises(BadInputError, match=r"shape mine.py:odd: its 'reward' is not a number for each of 4 rows"):
        shaped(tmp_path, shapes=[f"{mine}:odd"])
    with pytest.raises(BadInputError, match=r"shape listed .* returned list of shape \(1,\); a shape returns a dict"):
        shaped(tmp_path / "2", shapes=[f"{mine}:listed"])
    with pytest.raises(BadInputError, match=r"there is no column 'problem\.level'") as error:
        shaped(tmp_path / "3", beside=False, carried=["problem.level"])
    assert "give the --batch of a training" in str(error.value.hint)


def test_an_update_reads_what_its_shapes_and_its_objective_read_of_scores() -> None:
    from gradus.tasks.config.learning import UPDATE

    assert set(UPDATE.reads(UpdateConfig())["scores"]) == {"rollout_id", "reward", "correct"}
    graded = UpdateConfig.model_validate({"shapes": [{"name": "grpo_lambda"}]})
    assert set(UPDATE.reads(graded)["scores"]) == {"rollout_id", "reward", "correct"}
    assert (graded.reads_batch, UpdateConfig().reads_batch) == (True, False)
    assert graded.with_batch == UpdateConfig()


READER = '''
import numpy as np
from gradus.components import component

@component("shape", needs=("reward", "known.value", "judge: about", "judge: reward"))
def doubted(rows):
    """Take what the tracker expected off the reward, and half of what a judge said."""
    said = rows.others("judge")
    off = np.zeros(rows.num_rows)
    off[said["about"][:, 0]] = said["reward"] / 2
    return {"reward": rows["reward"] - np.nan_to_num(rows["known.value"]) - off}
'''


def test_a_shape_sees_rows_of_another_use_and_trackers_and_the_batch_has_neither(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(READER)
    store = Store(tmp_path / "lake")
    tables = {
        "rollouts": {
            "rollout_id": ["a:0", "j", "b:0"],
            "problem_id": ["a", "a", "b"],
            "completion": ["x", "[[A]]", "y"],
            "use": [None, "judge", None],
            "about": pa.array([None, ["a:0"], None], pa.list_(pa.string())),
        },
        "scores": {"rollout_id": ["j", "b:0", "a:0"], "problem_id": ["a", "b", "a"], "reward": [0.5, 1.0, 1.0]},
        "trackers": {"problem_id": ["b", "z"], "known.value": [0.4, 9.0]},
    }
    inputs = {role: (store.put(role, pa.table(columns)),) for role, columns in tables.items()}
    writer = store.writer(Ref("batch", "e" * 32))
    tracked = {"known.value": ("problem_id",)}
    config = {"shapes": [f"{tmp_path / 'mine.py'}:doubted"], "tracked": tracked, "carried": ["known.value"]}
    ctx = StageContext(store, inputs, writer, 7, Warm(), lambda frac, text="": None, {})
    run(ctx, ShapingConfig.model_validate(config))
    writer.commit()
    rows = store.read(writer.ref).to_pylist()
    assert [(row["rollout_id"], row["reward"], row["known.value"]) for row in rows] == [
        ("a:0", 0.75, None),
        ("b:0", 0.6, 0.4),
    ]
