"""Stage escalate: exactly the groups that failed for certain go on, each with a hint it has not seen."""

from pathlib import Path

import pyarrow as pa

from gradus.data.lake.store import Ref, Store
from gradus.data.seeds import derive_seed
from gradus.tasks.config.curation import EscalateConfig, SampleConfig
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.escalate import run
from gradus.tasks.stages.warm import Warm

Verdicts = dict[str, list[bool | None]]


def escalate(
    tmp_path: Path,
    verdicts: Verdicts,
    hints: list[tuple[str, int, str, bool]],
    *,
    level: int = 1,
    shown: str | None = None,
) -> tuple[list[dict[str, object]], StageResult]:
    """Groups `problem@r3h{level-1}` with these verdicts; `shown` is the hint of the previous level."""
    store = Store(tmp_path)
    group = {p: f"{p}@r3h{level - 1}" for p in verdicts}
    plan = pa.table(
        {
            "problem_id": list(verdicts),
            "n": [2] * len(verdicts),
            "group_id": list(group.values()),
            "hint_level": [level - 1] * len(verdicts),
            "hint_text": pa.array([shown] * len(verdicts), pa.string()),
        }
    )
    rows = [(p, i, v) for p, vs in verdicts.items() for i, v in enumerate(vs)]
    sampled = pa.table(
        {
            "rollout_id": [f"{group[p]}:{i}" for p, i, _ in rows],
            "problem_id": [p for p, _, _ in rows],
            "group_id": [group[p] for p, _, _ in rows],
            "round": pa.array([3] * len(rows), pa.int32()),
            "completion": [""] * len(rows),
        }
    )
    judged = pa.table(
        {
            "rollout_id": sampled.column("rollout_id"),
            "problem_id": sampled.column("problem_id"),
            "reward": [None if v is None else float(v) for _, _, v in rows],
            "correct": pa.array([v for _, _, v in rows], pa.bool_()),
        }
    ).take(pa.array(range(len(rows))[::-1]))  # the order of scores does not matter
    ladder = pa.table(
        {
            "problem_id": [h[0] for h in hints],
            "strategy": ["prefix"] * len(hints),
            "level": [h[1] for h in hints],
            "text": [h[2] for h in hints],
            "leaks_answer": [h[3] for h in hints],
        }
    )
    tables = {"plan": plan, "rollouts": sampled, "scores": judged, "hints": ladder}
    inputs = {role: (store.put(role, table),) for role, table in tables.items()}
    ref = Ref("plan", "e" * 32)
    store.discard(ref)
    writer = store.writer(ref)
    config = EscalateConfig(level=level, sample=SampleConfig(n=4, temperature=0.9, max_tokens=50))
    result = run(StageContext(store, inputs, writer, 13, Warm(), lambda frac, text="": None), config)
    writer.commit()
    return store.read(ref).to_pylist(), result


def test_only_groups_that_failed_for_certain_go_on(tmp_path: Path) -> None:
    verdicts: Verdicts = {"solved": [False, True], "failed": [False, False], "unsure": [False, None], "lost": []}
    plan, result = escalate(tmp_path, verdicts, [(p, 1, f"{p} first\n", False) for p in verdicts])
    assert plan == [
        {
            "problem_id": "failed", "group_id": "failed@r3h1", "n": 4, "hint_level": 1, "hint_text": "failed first\n",
            "temperature": 0.9, "max_tokens": 50, "seed": derive_seed(13, "failed", 3, 1),
            "reason": "all 2 wrong at hint level 0, shown hint level 1",
        }
    ]  # fmt: skip
    assert result.summary == {
        "groups": 1, "failed": 1, "skipped": {"not every rollout was judged": 2}, "level": 1,
    }  # fmt: skip
    assert result.metrics == {"data/escalated_hint_level": 1.0}


def test_missing_leaking_and_repeated_hints_are_skipped_and_counted(tmp_path: Path) -> None:
    verdicts: Verdicts = {p: [False] for p in ("new", "none", "leak", "same")}
    hints = [
        ("new", 2, "more\n", False),
        ("none", 1, "less\n", False),
        ("leak", 2, "42\n", True),
        ("same", 2, "less\n", False),
    ]
    plan, result = escalate(tmp_path, verdicts, hints, level=2, shown="less\n")
    assert [(row["problem_id"], row["hint_text"]) for row in plan] == [("new", "more\n")]
    assert plan[0]["reason"] == "all 1 wrong at hint level 1, shown hint level 2"
    assert result.summary["failed"] == 4
    assert result.summary["skipped"] == {
        "no hint of level 2": 1,
        "the hint states the answer": 1,
        "the hint was already shown": 1,
    }


def test_nothing_to_escalate_is_an_empty_plan(tmp_path: Path) -> None:
    plan, result = escalate(tmp_path, {"a": [True], "b": [False, True]}, [("a", 1, "x\n", False)])
    assert plan == []
    assert result.summary == {"groups": 0, "failed": 0, "skipped": {}, "level": 1}
    assert result.metrics == {}
