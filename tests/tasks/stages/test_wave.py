"""Stage wave: what the rollouts of a round make it sample next, against plans and counts by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.components.rows import ColumnError
from gradus.data.curation.plan import plan_rows, wave_rows
from gradus.data.curation.round import round_of
from gradus.data.curation.waves.allocation import more_samples
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.data.seeds import derive_seed
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.wave import run

Verdicts = Mapping[str, Sequence[bool | None]]
Rows = list[dict[str, Any]]


def asked(
    tmp_path: Path,
    wave: object,
    verdicts: Verdicts,
    *,
    hints: Sequence[tuple[str, int, str, bool]] = (),
    problems: Sequence[str] = (),
    call: int = 0,
    shown: str | None = None,
    rewards: Verdicts | None = None,
    curate: CurateConfig | None = None,
    unscored: int = 0,
    fractions: Sequence[float] = (),
    more: Mapping[str, tuple[Ref, ...]] = {},
    fits: int | None = None,
) -> tuple[Rows, StageResult]:
    """One call of wave 1 in round 3: a group `problem@r3h0` with these verdicts each, `shown` as its hint."""
    store, level = Store(tmp_path), int(shown is not None)
    group = {p: f"{p}@r3h0" for p in verdicts}
    rows = [(p, i, v) for p, vs in verdicts.items() for i, v in enumerate(vs)]
    values = [float(v) for vs in (rewards or {}).values() for v in vs if v is not None]
    of_wave = {"wave": pa.array([1] * len(rows), pa.int32()), "call": pa.array([call - 1] * len(rows), pa.int32())}
    tables = {
        "problems": pa.table(
            {"problem_id": [*verdicts, *problems], "question": [f"{p}?" for p in [*verdicts, *problems]]}
        ),
        "plan": pa.table(
            {
                "problem_id": list(verdicts),
                "n": [2] * len(verdicts),
                "group_id": list(group.values()),
                "budget": [7] * len(verdicts),
            }
        ),
        "rollouts": pa.table(
            {
                "rollout_id": [f"{group[p]}:{i}" for p, i, _ in rows],
                "problem_id": [p for p, _, _ in rows],
                "group_id": [group[p] for p, _, _ in rows],
                "completion": [f"{i}" for _, i, _ in rows],
                "hint_level": pa.array([level] * len(rows), pa.int32()),
                "hint_text": pa.array([shown] * len(rows), pa.string()),
                **(of_wave if call else {}),
            }
        ),
        "scores": pa.table(
            {
                "rollout_id": [f"{group[p]}:{i}" for p, i, _ in rows],
                "problem_id": [p for p, _, _ in rows],
                "reward": values or [None if v is None else float(v) for _, _, v in rows],
                "correct": pa.array([v for _, _, v in rows], pa.bool_()),
                "components": pa.array([[("short", i / 4)] for _, i, _ in rows], pa.map_(pa.string(), pa.float64())),
            }
        ).take(pa.array(range(unscored, len(rows))[::-1])),  # the order of scores does not matter
        "hints": pa.table(
            {
                "problem_id": pa.array([h[0] for h in hints], pa.string()),
                "strategy": pa.array(["prefix"] * len(hints), pa.string()),
                "level": pa.array([h[1] for h in hints], pa.int32()),
                "fraction": pa.array(fractions or [None] * len(hints), pa.float64()),
                "text": pa.array([h[2] for h in hints], pa.string()),
                "leaks_answer": pa.array([h[3] for h in hints], pa.bool_()),
            }
        ),
    }
    inputs = {role: (store.put(role, table),) for role, table in tables.items() if table.num_rows} | more
    config = PlanningConfig.model_validate(
        {
            "wave": wave,
            "sample": SampleConfig(n=4, temperature=0.9, max_tokens=50).model_dump(),
            "curate": (curate or CurateConfig()).model_dump(),
        }
    )
    writer = store.writer(Ref("plan", "e" * 32))
    facts = {"round": 3, "wave": 1, "call": call, **({} if fits is None else {"fits": fits})}
    result = run(StageContext(store, inputs, writer, 13, Warm(), lambda frac, text="": None, facts), config)
    writer.commit()
    return store.read(writer.ref).to_pylist(), result


FAILED: Verdicts = {"solved": [False, True], "failed": [False, False], "unsure": [False, None]}


def test_only_groups_that_failed_for_certain_are_escalated(tmp_path: Path) -> None:
    wave = {"name": "escalate", "levels": [1, 2]}
    plan, result = asked(tmp_path, wave, FAILED, hints=[(p, 1, f"{p} first\n", False) for p in FAILED])
    assert plan == [
        {
            "problem_id": "failed", "group_id": "failed@r3h1", "plan_id": "failed@r3h1", "wave": 1, "call": 0,
            "n": 4, "hint_level": 1, "hint_text": "failed first\n", "temperature": 0.9, "max_tokens": 50,
            "seed": derive_seed(13, "failed", 3, 1),
            "reason": "all 2 wrong at hint level 0, shown hint level 1",
        }
    ]  # fmt: skip
    assert result.summary == {"groups": 1, "skipped": {"not every rollout was judged": 1}}
    assert result.metrics == {"data/wave_rollouts": 4.0}


def test_missing_leaking_and_repeated_hints_are_skipped_and_counted(tmp_path: Path) -> None:
    verdicts: Verdicts = {p: [False] for p in ("new", "none", "leak", "same")}
    hints = [
        ("new", 2, "more\n", False),
        ("none", 1, "less\n", False),
        ("leak", 2, "42\n", True),
        ("same", 2, "less\n", False),
    ]
    wave = {"name": "escalate", "levels": [1, 2]}
    plan, result = asked(tmp_path, wave, verdicts, hints=hints, call=1, shown="less\n")
    assert [(row["problem_id"], row["hint_text"]) for row in plan] == [("new", "more\n")]
    assert plan[0]["reason"] == "all 1 wrong at hint level 1, shown hint level 2"
    assert result.summary["skipped"] == {
        "no hint of level 2": 1,
        "the hint states the answer": 1,
        "the hint was already shown": 1,
    }
    assert asked(tmp_path / "3", wave, verdicts, hints=hints, call=2)[0] == []  # there is no third level


def test_the_rows_of_the_last_call_and_rollouts_without_a_score(tmp_path: Path) -> None:
    known = {"problem_id": list("abcd"), "group": [0, 1, 2, 3]}
    rows = pa.table(
        {**known, "wave": pa.array([None, 1, 2, 2], pa.int32()), "call": pa.array([None, 0, 0, 1], pa.int32())}
    )
    assert round_of(rows, wave=2, calls=0).newest.tolist() == [True] * 4
    assert round_of(rows, wave=2, calls=1).newest.tolist() == [False, False, True, False]
    assert round_of(rows, wave=2, calls=2).newest.tolist() == [False, False, False, True]
    assert round_of(rows).is_first.tolist() == [True, False, False, False]
    body = 'return round.plan(like=[0], budget=float(np.isnan(round.rows["reward"]).sum()))'
    verdicts: Verdicts = {"a": [True, False], "b": [False]}
    plan, _ = asked(tmp_path, users(tmp_path, body, '("reward",)'), verdicts, unscored=1)
    assert plan[0]["budget"] == 1.0


def test_nothing_to_escalate_is_an_empty_plan(tmp_path: Path) -> None:
    verdicts: Verdicts = {"a": [True], "b": [False, True]}
    plan, result = asked(tmp_path, "escalate", verdicts, hints=[("a", 1, "x\n", False)])
    assert (plan, result.summary, result.metrics) == ([], {"groups": 0, "skipped": {}}, {})


def test_refill_draws_as_many_problems_as_the_share_of_informative_groups_asks_for(tmp_path: Path) -> None:
    # Two of four groups are informative and five are wanted: three are missing, so 3 / (2 / 4) = 6 problems.
    verdicts: Verdicts = {"a": [True, False], "b": [True, True], "c": [False, False], "d": [False, True]}
    others = [f"p{i}" for i in range(9)]
    plan, _ = asked(tmp_path, {"name": "refill", "groups": 5}, verdicts, problems=others)
    assert [row["problem_id"] for row in plan] == others[:6]
    assert {(row["n"], row["hint_level"], row["reason"]) for row in plan} == {
        (4, 0, "2 of 4 groups are informative, 5 are wanted")
    }
    assert asked(tmp_path / "full", {"name": "refill", "groups": 2}, verdicts, problems=others)[0] == []
    assert len(asked(tmp_path / "all", "refill", verdicts, problems=others)[0]) == 4  # (4 - 2) / (2 / 4)
    few, said = asked(tmp_path / "few", {"name": "refill", "groups": 5}, verdicts)
    assert (few, said.summary["skipped"]) == ([], {"no problem is left to draw": 1})


@pytest.mark.parametrize(("fits", "drawn"), [(0, 0), (3, 0), (4, 1), (11, 2), (400, 6)])
def test_a_wave_draws_no_more_problems_than_fit_a_budget(tmp_path: Path, fits: int, drawn: int) -> None:
    # Six problems are asked for, as above, of four rollouts each.
    verdicts: Verdicts = {"a": [True, False], "b": [True, True], "c": [False, False], "d": [False, True]}
    others = [f"p{i}" for i in range(9)]
    plan, _ = asked(tmp_path, {"name": "refill", "groups": 5}, verdicts, problems=others, fits=fits)
    assert [row["problem_id"] for row in plan] == others[:drawn]


def test_refill_by_a_band_and_with_the_recipes_filters(tmp_path: Path) -> None:
    # Pass rates 1/4, 1/2 and 3/4: one lies in [0.4, 0.6].
    verdicts: Verdicts = {"a": [True, *[False] * 3], "b": [True, False] * 2, "c": [*[True] * 3, False]}
    wave = {"name": "refill", "groups": 2, "low": 0.4, "high": 0.6}
    short = CurateConfig.model_validate({"filters": [{"name": "length", "high": 2}]})
    plan, _ = asked(tmp_path, wave, verdicts, problems=["long", "x", "y", "z", "q"], curate=short)
    assert [row["problem_id"] for row in plan] == ["x", "y", "z"]  # 1 / (1 / 3) of those with two characters


def test_xrpo_gives_samples_to_the_widest_interval_and_they_join_their_group(tmp_path: Path) -> None:
    # Half-widths by a table of t: 3.182, 2.776, 2.571, 2.447 at 3, 4, 5, 6 degrees of freedom; s = 0.57735 and 0.
    size, spread = np.array([4.0, 4.0]), np.array([0.57735, 0.0])
    assert more_samples(size, spread, 3, alpha=0.05, explore=1.0).tolist() == [2, 1]
    assert more_samples(size, spread, 3, alpha=0.05, explore=0.1).tolist() == [3, 0]
    assert more_samples(np.array([1.0, 2.0]), np.zeros(2), 1, alpha=0.05, explore=1.0).tolist() == [1, 0]
    wave = {"name": "xrpo", "frac": 0.375, "explore": 1.0}  # 3 of 8
    verdicts: Verdicts = {"a": [True, False] * 2, "b": [False] * 4}
    plan, result = asked(tmp_path, wave, verdicts)
    assert [(row["plan_id"], row["group_id"], row["n"]) for row in plan] == [
        ("a@r3h0.1", "a@r3h0", 2),
        ("b@r3h0.1", "b@r3h0", 1),
    ]
    assert result.metrics == {"data/wave_rollouts": 3.0}


USERS = '''
import numpy as np
from gradus.components import component

@component("wave", needs=NEEDS)
def mine(round, rng, *, n: int = 2):
    """Ask the rows with a short answer again, in other words."""
    BODY
'''


def users(
    tmp_path: Path, body: str, needs: str = '("parts.short", "problem.question", "plan.budget", "completion")'
) -> str:
    (tmp_path / "mine.py").write_text(USERS.replace("NEEDS", needs).replace("BODY", body))
    return f"{tmp_path / 'mine.py'}:mine"


def test_a_wave_of_a_users_reads_parts_problems_and_plans_and_asks_with_messages_of_its_own(tmp_path: Path) -> None:
    body = """
    few = np.flatnonzero(round.rows["parts.short"] >= 0.5)
    asked, said = round.rows["problem.question"], round.rows["completion"]
    texts = [[{"role": "user", "content": f"{asked[i]} {said[i]}"}] for i in few]
    return round.plan(like=few, n=n, messages=texts, top_p=0.5, budget=round.rows["plan.budget"][few] + 1)
"""
    plan, _ = asked(tmp_path, users(tmp_path, body), {"a": [True, False, True], "b": [False]})
    (row,) = plan
    assert (row["messages"], row["top_p"], row["n"], row["budget"]) == (
        [{"role": "user", "content": "a? 2"}],
        0.5,
        2,
        8,
    )
    assert (row["group_id"], row["reason"]) == ("a@r3h0.1", "wave mine.py:mine")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return round.plan(like=[9], n=1)", "wave mine.py:mine: it names row 9 of 2"),
        ("return round.plan(problems=[0, -1])", "it names row -1 of 3"),
        (
            "return round.plan(problems=['b'])",
            "its 'problems' are .'b'., and rows and groups are named by their numbers",
        ),
        ("return round.plan(like=[True, False])", "its 'like' are"),
        ("return round.plan(like=[0], group='a@r3h0')", "its 'group' are 'a@r3h0'"),
        ("return round.plan(like=[0], group=5)", "it plans for group 5, and there are 1 groups"),
        ("return round.plan(n=1)", "it plans neither rows like others nor problems"),
        ("return round.plan(like=[0], n=0)", "asks for n = 0, .* of problem a"),
        ("return round.plan(like=[0], n=[1, 2])", "it plans 1 rows and has 2 values of 'n'"),
        ("return round.plan(like=[0], n='many')", "its values of 'n' are no int32"),
        ("return round.plan(like=[0], seed=3)", "it sets 'seed', which is decided for it"),
        ("return round.hint([0], 1)", "it asks for hints without declaring it"),
        ("return 3", "returned int; a wave returns a plan"),
        ("return 1 / 0", "failed at .*mine.py line 8: ZeroDivisionError"),
    ],
)
def test_what_a_wave_cannot_plan_is_a_sentence_that_names_it(tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        asked(tmp_path, users(tmp_path, body), {"a": [True, False]}, problems=["b", "c"])


BY_KIND = """
import numpy as np
from gradus.components import component

@component("wave", needs=("problem_id", "traces", "kind.value", "known.value"))
def by_kind(round, rng):
    texts, rows = round.traces, round.rows
    first = {name: row for row, name in reversed([*enumerate(rows["problem_id"])])}
    like = np.array([first[name] for name in texts["problem_id"].to_pylist()])
    return round.plan(
        like=like, given=texts["text"], origin="book", reason=texts["trace_id"], kind=texts["kind.value"],
        known=np.nan_to_num(rows["known.value"][like]),
    )
"""


@pytest.mark.parametrize(
    ("best", "planned"),
    [
        ("", [("a", "4", "0", 0.5), ("b", "9", "1", None), ("a", "four", "3", 2.0)]),
        ("kind.value", [("b", "9", "1", None), ("a", "four", "3", 2.0)]),
    ],
)
def test_a_wave_has_what_is_measured_of_its_texts_and_of_several_the_best(
    tmp_path: Path, best: str, planned: list[tuple[Any, ...]]
) -> None:
    (tmp_path / "mine.py").write_text(BY_KIND)
    store = Store(tmp_path / "lake")
    texts = {"rollout_id": [*"0123"], "problem_id": [*"abca"], "completion": ["4", "9", "?", "four"]}
    kind = pa.table({"trace_id": [*"0123"], "kind.value": [0.5, None, 9.0, 2.0]})
    known = pa.table({"problem_id": ["a"], "known.value": [7.0]})
    found, _ = asked(
        tmp_path / "lake",
        {"name": f"{tmp_path / 'mine.py'}:by_kind", "traces": "texts.jsonl", "best": best},
        {"a": [False, False], "b": [False]},
        curate=CurateConfig(tracked={"kind.value": ("trace_id",), "known.value": ("problem_id",)}),
        more={
            "traces": (store.put("rollouts", pa.table(texts)),),
            "trackers": (store.put("measures", kind), store.put("trackers", known)),
        },
    )
    assert [(row["problem_id"], row["given"], row["reason"], row["kind"]) for row in found] == planned
    assert [row["known"] for row in found] == [7.0 if row["problem_id"] == "a" else 0.0 for row in found]


def test_a_wave_reads_what_it_declares_alone(tmp_path: Path) -> None:
    body = 'return round.rows["correct"]'
    with pytest.raises((ColumnError, BadInputError), match="reads 'correct' without declaring it"):
        asked(tmp_path, users(tmp_path, body), {"a": [True]})
    reads = PlanningConfig.model_validate({"wave": users(tmp_path, body)}).reads
    assert reads["scores"] == ("rollout_id", "components")
    assert "completion" in reads["rollouts"]
    assert not {"completion_tokens", "logprobs"} & {*reads["rollouts"]}
    every = PlanningConfig.model_validate({"wave": users(tmp_path, body, "None")}).reads
    assert "logprobs" not in every["rollouts"]
    assert "outcome" in every["scores"]


CALLS = st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=5), min_size=1, max_size=4)


@pytest.mark.slow
@given(CALLS)
def test_names_and_seeds_of_a_round_are_each_their_own_and_do_not_depend_on_other_problems(
    calls: list[list[tuple[str, int]]],
) -> None:
    def planned(only: str) -> list[tuple[str, int]]:
        ids = pa.array(["a", "b"])
        round_ = {"round_index": 2, "seed": 7}
        tables = [plan_rows(ids, reasons=ids, n=1, temperature=1.0, max_tokens=1, **round_)]
        for number, rows in enumerate(calls, start=1):
            kept = [row for row in rows if row[0] in only]
            names = pa.array([name for name, _ in kept], pa.string())
            plan = plan_rows(names, reasons=names, n=1, temperature=1.0, max_tokens=1, **round_)
            levels = {"hint_level": pa.array([level for _, level in kept], pa.int32())}
            before = pa.concat_tables(tables, promote_options="default")
            tables.append(wave_rows(plan, levels, before, wave=number, call=0, **round_))
        table = pa.concat_tables(tables, promote_options="default")
        return list(zip(table["group_id"].to_pylist(), table["seed"].to_pylist(), strict=True))

    every = planned("abc")
    assert len({name for name, _ in every}) == len({seed for _, seed in every}) == len(every)
    assert [row for row in every if row[0].startswith("a")] == [row for row in planned("a") if row[0].startswith("a")]
    assert ("a@r2h0", derive_seed(7, "a", 2, 0)) in every


def test_the_sentence_above_a_hint_is_planned_with_it_and_inherited() -> None:
    rows = pa.table(
        {
            "problem_id": ["a", "b", "c"],
            "group": [0, 1, 2],
            "hint_level": pa.array([0, 1, 0], pa.int32()),
            "hint_text": [None, "x", None],
            "plan.shown": [None, "Old:", None],
        }
    )
    hints = pa.table(
        {
            "problem_id": ["a", "c"],
            "level": pa.array([2, 2], pa.int32()),
            "text": ["y", "z"],
            "leaks_answer": [False, False],
            "shown": ["New:", None],
        }
    )
    round_ = round_of(rows, hints=hints)
    like = np.array([0, 2])
    plan = round_.plan(like=like, hint_level=2, hint_text=round_.hint(like, 2)[0])
    assert plan.columns["shown"].to_pylist() == ["New:", None]
    again = round_.plan(like=np.array([0, 1]))
    assert again.columns["shown"].to_pylist() == [None, "Old:"]
    assert "shown" not in round_.plan(like=np.array([1]), messages="other").columns
