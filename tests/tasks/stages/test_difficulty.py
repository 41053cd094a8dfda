"""Stage difficulty: scores in, table out, across rounds and policies; nothing judged is a failure."""

from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import GateError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.curation import DifficultyConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.difficulty import run
from gradus.tasks.stages.gates import verdict_breach


def scores(verdicts: dict[str, list[bool | None]], tag: str = "") -> pa.Table:
    rows = [
        {"rollout_id": f"{p}{tag}:{i}", "problem_id": p, "reward": None if v is None else float(v), "correct": v}
        for p, vs in verdicts.items()
        for i, v in enumerate(vs)
    ]
    types = [
        ("rollout_id", pa.string()),
        ("problem_id", pa.string()),
        ("reward", pa.float64()),
        ("correct", pa.bool_()),
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def rollouts(judged: pa.Table, policy: str, hint_level: int = 0) -> pa.Table:
    num = judged.num_rows
    return pa.table(
        {
            "rollout_id": judged.column("rollout_id"),
            "problem_id": judged.column("problem_id"),
            "completion": [""] * num,
            "policy": [policy] * num,
            "hint_level": pa.array([hint_level] * num, pa.int32()),
        }
    )


def measure(store: Store, name: str, round: int, **inputs: list[Ref]) -> tuple[Ref, StageResult]:
    ref = Ref("difficulty", name * 8)
    writer = store.writer(ref)
    roles = {role: tuple(refs) for role, refs in inputs.items()}
    result = run(
        StageContext(store, roles, writer, 0, Warm(), lambda frac, text="": None, {"round": round}), DifficultyConfig()
    )
    writer.commit()
    return ref, result


def test_rounds_of_two_policies_with_hinted_shards(tmp_path: Path) -> None:
    store = Store(tmp_path)
    bare, hinted = scores({"a": [True, False, None], "b": [False, False]}), scores({"b": [True, True]}, "h")
    first, result = measure(
        store,
        "0",
        0,
        scores=[store.put("scores", bare), store.put("scores", hinted)],
        rollouts=[store.put("rollouts", rollouts(bare, "p0")), store.put("rollouts", rollouts(hinted, "p0", 2))],
    )
    assert result.summary == {
        "rows": 2, "measured": 2, "judged": 4, "correct": 1, "unjudged": 1, "hinted": 2, "all_wrong": 1,
        "all_right": 0, "pass_rate_mean": 0.25, "reward_mean": 0.25, "reward_variance_mean": 0.125,
        "rollouts": 5, "failed": 1, "coverage": 0.8, "first_unjudged": ["a:2"],
    }  # fmt: skip
    wanted = {"data/pass_rate_mean": 0.25, "data/reward_variance_mean": 0.125, "data/fresh_frac": 1.0}
    helped = {"data/rescued_problems": 1.0, "data/helped_accuracy": 1.0, "data/unhelped_accuracy": 0.0}
    assert result.metrics == wanted | helped
    later = scores({"b": [True, True]}, "later")
    second, result = measure(
        store,
        "1",
        1,
        scores=[store.put("scores", later)],
        rollouts=[store.put("rollouts", rollouts(later, "p1"))],
        difficulty=[first],
    )
    a, b = store.read(second).to_pylist()
    assert (a["n"], a["k"], a["history"], a["last_round"]) == (2, 1, [0.5], 0)
    assert (b["n"], b["k"], b["history"], b["policies"], b["last_round"]) == (2, 2, [0.0, 1.0], ["p0", "p1"], 1)
    assert (b["alpha"], b["beta"]) == (3.0, 3.0)
    assert result.metrics["data/fresh_frac"] == 0.5
    assert result.samples[0]["problem_id"] == "a"  # the one with variance


def test_scores_alone_are_enough(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ref, _ = measure(store, "0", 0, scores=[store.put("scores", scores({"a": [True]}))])
    assert store.read(ref, ["problem_id", "n", "k"]).to_pylist() == [{"problem_id": "a", "n": 1, "k": 1}]


def test_nothing_judged_is_a_failure(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(GateError, match=r"none of 2 scores .*2 without a verdict, 0 hinted"):
        measure(store, "0", 0, scores=[store.put("scores", scores({"a": [None, None]}))])


def graded(rewards: dict[str, list[float]]) -> pa.Table:
    rows = [
        {"rollout_id": f"{p}:{i}", "problem_id": p, "reward": r, "correct": None}
        for p, rs in rewards.items()
        for i, r in enumerate(rs)
    ]
    types = [("rollout_id", pa.string()), ("problem_id", pa.string()), ("reward", pa.float64())]
    return pa.Table.from_pylist(rows, schema=pa.schema([*types, ("correct", pa.bool_())]))


def test_graded_scores_without_a_verdict_breach_the_gate_unless_it_is_raised(tmp_path: Path) -> None:
    store = Store(tmp_path)
    judged = [store.put("scores", graded({"a": [0.2, 0.4], "b": [0.5, 0.5]}))]
    ref, result = measure(store, "0", 0, scores=judged)
    told = verdict_breach(result.kept, DifficultyConfig())
    assert "4 of 4 rollouts (100.0%) have no verdict on correctness" in told
    assert "the first: a:0, a:1, b:0, b:1" in told
    a, b = store.read(ref).to_pylist()
    assert (a["n"], a["k"], a["reward_n"], a["reward_mean"]) == (0, 0, 2, pytest.approx(0.3))
    assert (a["reward_variance"], b["reward_variance"]) == (pytest.approx(0.01), 0.0)
    assert result.summary["pass_rate_mean"] is None
    assert "data/pass_rate_mean" not in result.metrics
    assert verdict_breach(result.kept, DifficultyConfig(max_unjudged_frac=1.0)) == ""


def test_a_round_in_which_every_problem_had_a_hint_measures_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    bare, hinted = scores({"a": [True, False]}), scores({"a": [True], "b": [True]}, "h")
    first, _ = measure(store, "0", 0, scores=[store.put("scores", bare)])
    shown = {"scores": [store.put("scores", hinted)], "rollouts": [store.put("rollouts", rollouts(hinted, "p0", 1))]}
    second, result = measure(store, "1", 1, difficulty=[first], **shown)
    assert store.read(second).to_pylist() == store.read(first).to_pylist()
    assert (result.summary["measured"], result.summary["hinted"], result.metrics["data/fresh_frac"]) == (0, 2, 0.0)
    assert verdict_breach(result.kept, DifficultyConfig(max_unjudged_frac=0.0)) == ""
    alone, result = measure(store, "2", 1, **shown)
    assert (store.read(alone).num_rows, result.metrics) == (0, {})
    failed = scores({"a": [None]}, "h")
    with pytest.raises(GateError, match=r"none of 1 scores .*1 hinted"):
        measure(
            store,
            "3",
            1,
            scores=[store.put("scores", failed)],
            rollouts=[store.put("rollouts", rollouts(failed, "p0", 1))],
        )
