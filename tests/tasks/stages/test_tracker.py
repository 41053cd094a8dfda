"""Stage tracker: rows that are kept from round to round, and read beside others, against tables by hand."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.curation.candidates import candidates
from gradus.data.curation.tracked import changed_rows, merged, named, with_tracked
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.curation import CurateConfig
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.config.rounds import TrackingConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import Call, planned
from gradus.tasks.stages import curate, wave
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.tracker import run

Rewards = Mapping[str, Sequence[float | None]]

PROBLEMS = pa.table(
    {
        "problem_id": ["a", "b", "c"],
        "question": ["a?", "b?", "c?"],
        "domain": ["sums", "signs", "sums"],
        "extra": ['{"level": 1}', '{"level": 2}', None],
    }
)


def context(store: Store, table: str, inputs: Mapping[str, Any], index: int = 3) -> StageContext:
    writer = store.writer(Ref(table, f"{len(list(store.root.rglob('*'))):032d}"))
    return StageContext(store, inputs, writer, 13, Warm(), lambda frac, text="": None, {"round": index})


def stored(store: Store, rewards: Rewards, tables: Mapping[str, pa.Table]) -> dict[str, tuple[Ref]]:
    """A round with a group for each problem with these rewards, and tables of other roles."""
    rows = [(p, i, value) for p, values in rewards.items() for i, value in enumerate(values)]
    reward = pa.array([value for *_, value in rows], pa.float64())
    known = {"rollout_id": [f"{p}:{i}" for p, i, _ in rows], "problem_id": [p for p, *_ in rows]}
    everything = {
        "problems": PROBLEMS,
        "plan": pa.table({"problem_id": list(rewards), "group_id": list(rewards), "n": [4] * len(rewards)}),
        "rollouts": pa.table({**known, "group_id": known["problem_id"], "completion": ["x"] * len(rows)}),
        "scores": pa.table({**known, "reward": reward, "correct": reward.cast(pa.bool_())}),
        **tables,
    }
    return {role: (store.put("trackers" if role == "before" else role, each),) for role, each in everything.items()}


def asked(
    folder: Path,
    tracker: object,
    rewards: Rewards,
    *,
    tables: Mapping[str, pa.Table] = {},
    tracked: Mapping[str, Sequence[str]] = {},
    means: Sequence[str] = (),
) -> tuple[pa.Table, StageResult]:
    """One call of a tracker in round 3: a group for each problem with these rewards."""
    store = Store(folder)
    ctx = context(store, "trackers", stored(store, rewards, tables))
    result = run(ctx, TrackingConfig.model_validate({"tracker": tracker, "tracked": dict(tracked), "means": means}))
    ctx.out.commit()
    return store.read(ctx.out.ref), result


USERS = '''
import numpy as np
from gradus.components import component

@component("tracker", by=BY, columns=("seen", "last"), needs=NEEDS)
def mine(before, round):
    """Count rollouts by the key."""
    rows = round.rows
    BODY
'''
COUNTING = """
    key, count = np.unique(rows[KEY], return_counts=True)
    return {KEY: key, "seen": before.at("seen", key, default=0) + count, "last": [f"round {round.index}"] * len(key)}
"""


def users(folder: Path, body: str, by: str = '("problem_id",)', needs: str = "()") -> str:
    folder.mkdir(exist_ok=True)
    text = USERS.replace("BY", by).replace("NEEDS", needs).replace("BODY", body)
    (folder / "mine.py").write_text(text.replace("KEY", by.strip("(),")))
    return f"{folder / 'mine.py'}:mine"


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def test_rows_that_a_tracker_does_not_return_stay_and_others_are_counted_on(tmp_path: Path) -> None:
    mine = users(tmp_path, COUNTING)
    first, result = asked(tmp_path / "1", mine, {"b": [1, 0], "a": [0]})
    rows = [("a", 1.0, "round 3"), ("b", 2.0, "round 3")]
    assert first.column_names == ["problem_id", "mine.seen", "mine.last"]
    assert [tuple(row.values()) for row in first.to_pylist()] == rows
    assert result.metrics == {"data/tracked_rows": 2.0, "data/tracked_changed": 2.0}
    before = first.set_column(2, "mine.last", pa.array(["round 1", "round 2"]))
    again, result = asked(tmp_path / "2", mine, {"c": [1], "b": [0, 1, 1]}, tables={"before": before})
    assert [tuple(row.values()) for row in again.to_pylist()] == [
        ("a", 1.0, "round 1"),
        ("b", 5.0, "round 3"),
        ("c", 1.0, "round 3"),
    ]
    assert (result.summary, len(result.samples)) == ({"rows": 3, "changed": 2}, 3)


def test_the_mean_of_a_column_that_is_followed_is_a_metric(tmp_path: Path) -> None:
    mine = users(tmp_path, COUNTING)
    before = table(**{"problem_id": ["a", "c"], "mine.seen": [3.0, None], "mine.last": ["", ""]})
    _, result = asked(tmp_path / "1", mine, {"b": [1]}, tables={"before": before}, means=["mine.seen"])
    assert result.metrics["mine.seen"] == 2.0  # 3 of a, 1 of b, nothing of c
    with pytest.raises(BadInputError, match=r"the mean of mine.last, and it holds text"):
        asked(tmp_path / "2", mine, {"b": [1]}, means=["mine.last"])


@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ('("problem.domain",)', {"signs": 2.0, "sums": 4.0}),
        ('("problem.level",)', {1.0: 3.0, 2.0: 2.0, None: 1.0}),
        ('("plan.n",)', {4: 6.0}),
    ],
)
def test_keys_are_any_columns_of_rows_problems_and_plans(tmp_path: Path, by: str, rows: dict[Any, float]) -> None:
    found, _ = asked(tmp_path / "lake", users(tmp_path, COUNTING, by), {"a": [1, 0, 0], "b": [1, 1], "c": [0]})
    assert dict(zip(found.column(0).to_pylist(), found.column("mine.seen").to_pylist(), strict=True)) == rows


def test_without_key_columns_one_row_of_the_whole_run_is_kept(tmp_path: Path) -> None:
    body = 'return {"seen": before.at("seen", default=0) + rows.num_rows, "last": [[0.5, 1.0]]}'
    mine = users(tmp_path, body, "()")
    first, _ = asked(tmp_path / "1", mine, {"a": [1, 0]})
    again, _ = asked(tmp_path / "2", mine, {"a": [1, 0, 1]}, tables={"before": first})
    assert again.to_pylist() == [{"mine.seen": 5.0, "mine.last": [0.5, 1.0]}]


def test_a_tracker_reads_others_as_they_were_and_candidates_with_their_measurements(tmp_path: Path) -> None:
    body = """
    value, rate = rows["other.value"], round.candidates["pass_rate"]
    return {"problem_id": ["a", "b"], "seen": [np.nansum(value), np.isnan(value).sum()], "last": [rate[0], rate[1]]}
"""
    mine = users(tmp_path, body, needs='("other.value", "pass_rate")')
    tables = {
        "trackers": table(**{"problem.domain": ["sums", None], "other.value": [0.25, 9.0]}),
        "difficulty": table(problem_id=["a"], n=[4], k=[1]),
    }
    by = {"other.value": ("problem.domain",)}
    found, _ = asked(tmp_path / "lake", mine, {"a": [1, 0], "b": [1], "c": [1]}, tables=tables, tracked=by)
    assert found.column("mine.seen").to_pylist() == [0.75, 1.0]  # a, a and c are sums
    assert found.column("mine.last").to_pylist() == [0.25, None]
    absent, _ = asked(tmp_path / "none", mine, {"a": [1, 0], "b": [1]}, tracked=by)
    assert absent.column("mine.seen").to_pylist() == [0.0, 3.0]


def test_spo_begins_at_the_pass_rate_that_was_measured(tmp_path: Path) -> None:
    measured = {"difficulty": table(problem_id=["b"], n=[4], k=[1])}
    found, _ = asked(tmp_path, "spo", {"b": [1], "a": [0]}, tables=measured)
    assert found.column("spo.alpha").to_pylist() == [4.0, 3.0]  # 8 counts at 1/2, then 0; 8 at 1/4, then 1
    assert found.column("spo.round").to_pylist() == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('return {"problem_id": ["a"], "seen": [1]}', "tracker mine.py:mine: it returns no last"),
        ('return {"problem_id": ["a"], "seen": [1], "last": [1], "more": [1]}', "it returns 'more', which is neither"),
        (
            'return {"problem_id": ["a"], "seen": [1, 2], "last": [1]}',
            "it returns 1 values of problem_id and 2 of seen",
        ),
        ('return {"problem_id": ["a", "a"], "seen": [1, 2], "last": [1, 2]}', "it returns two rows of problem_id = a"),
        (
            'return {"problem_id": ["a"], "seen": [{"x": 1}], "last": [1]}',
            "its values of seen are neither numbers, nor",
        ),
        ('return {"problem_id": ["a"], "seen": [["x"]], "last": [1]}', "its values of seen are neither numbers, nor"),
        ('return {"problem_id": ["a", "b"], "seen": [1, "x"], "last": [1, 2]}', "its values of seen are neither"),
        ('return {"problem_id": ["a"], "seen": [1], "last": [2]}', "it kept text as last, and returns a whole number"),
        ("return [1]", "returned list of shape .*; a tracker returns a dict of arrays"),
        ("return round.draw(1)", "it draws problems, which a wave or a sampler does"),
        ('return rows["completion"]', "reads 'completion' without declaring it"),
        (
            'return {"problem_id": ["a"], "seen": before.at("seen"), "last": [1]}',
            "rows are kept by problem_id, and 0 col",
        ),
        ("return 1 / 0", "tracker mine failed at .*mine.py line 9: ZeroDivisionError"),
    ],
)
def test_what_a_tracker_cannot_keep_is_a_sentence_that_names_it(tmp_path: Path, body: str, said: str) -> None:
    before = {"before": table(**{"problem_id": ["a", "b"], "mine.seen": [1, 1], "mine.last": ["x", "y"]})}
    with pytest.raises(BadInputError, match=said):
        asked(tmp_path / "lake", users(tmp_path, body), {"a": [1.0]}, tables=before)


def test_two_rows_of_a_tracker_that_keeps_one_are_refused(tmp_path: Path) -> None:
    mine = users(tmp_path, 'return {"seen": [1, 2], "last": [1, 2]}', "()")
    with pytest.raises(BadInputError, match="it returns 2 rows, and keeps one"):
        asked(tmp_path / "lake", mine, {"a": [1.0]})


def test_only_what_is_declared_is_read(tmp_path: Path) -> None:
    mine = users(tmp_path, COUNTING, '("problem.domain",)', '("reward", "other.value", "parts.short")')
    reads = TrackingConfig.model_validate({"tracker": mine, "tracked": {"other.value": ("problem.level",)}}).reads
    assert reads["scores"] == ("rollout_id", "reward", "components")
    assert reads["trackers"] == ("problem.level", "other.value")
    assert reads["problems"] == ("problem_id", "question", "messages", "domain", "extra")
    assert "completion" not in reads["rollouts"]


def test_filters_and_samplers_of_a_plan_read_trackers(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import numpy as np\nfrom gradus.components import component\n"
        "from gradus.data.curation.results import Draw, selection\n\n"
        '@component("filter", needs=("mine.seen",))\ndef often(rows):\n'
        '    return selection(rows.num_rows, [(rows["mine.seen"] > 5, "seen often")])\n\n'
        '@component("sampler", needs=("other.value", "problem.domain"))\ndef best(rows, num, rng):\n'
        '    value = np.nan_to_num(rows["other.value"]) + (rows["problem.domain"] == "signs")\n'
        "    index = np.argsort(-value)[:num]\n"
        "    return Draw(index, np.ones(len(index)), np.zeros(len(index), dtype=bool))\n"
    )
    store = Store(tmp_path / "lake")
    kept = [
        table(**{"problem_id": ["b"], "mine.seen": [9], "mine.last": [1]}),
        table(**{"problem.level": [1.0, None], "other.value": [0.5, 0.75]}),
    ]
    inputs = {"problems": (store.put("problems", PROBLEMS),), "trackers": tuple(store.put("trackers", t) for t in kept)}
    config = CurateConfig.model_validate(
        {
            "filters": [f"{tmp_path / 'own.py'}:often"],
            "sampler": f"{tmp_path / 'own.py'}:best",
            "tracked": {"mine.seen": ("problem_id",), "other.value": ("problem.level",)},
        }
    )
    ctx = context(store, "plan", inputs)
    result = curate.run(ctx, config)
    ctx.out.commit()
    assert store.read(ctx.out.ref).column("problem_id").to_pylist() == ["c", "a"]
    assert result.summary["reasons"] == {"seen often": 1}


def test_a_wave_reads_trackers_beside_its_rows_and_draws_problems_by_them(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import numpy as np\nfrom gradus.components import component\n\n"
        '@component("wave", needs=("group", "sec.gain"))\ndef more(round, rng):\n'
        '    rows, known = round.rows["sec.gain"], round.candidates["sec.gain"]\n'
        "    assert known.tolist()[:1] == [0.25] and np.isnan(known[1])\n"
        "    return round.plan(problems=round.draw(1), gain=float(np.nanmax(rows)))\n"
    )
    store, by = Store(tmp_path / "lake"), {"sec.gain": ["problem.domain"], "spo.value": ["problem_id"]}
    kept = pa.table({"problem.domain": ["sums"], "sec.gain": [0.25]})
    inputs = stored(store, {"a": [1, 0]}, {"trackers": kept})
    inputs["trackers"] += (store.put("trackers", pa.table({"problem_id": ["b"], "spo.value": [0.5]})),)
    curated = {"sampler": {"name": "spo", "epsilon": 1e-9}, "tracked": by}
    planning = PlanningConfig.model_validate({"wave": f"{tmp_path / 'own.py'}:more", "curate": curated})
    assert planning.reads["trackers"] == ("problem.domain", "problem_id", "sec.gain", "spo.value")
    assert {"domain", "problem_id"} <= set(planning.reads["problems"])
    ctx = context(store, "plan", inputs)
    ctx.facts.update({"wave": 1, "call": 0})
    wave.run(ctx, planning)
    ctx.out.commit()
    (row,) = store.read(ctx.out.ref).to_pylist()
    assert (row["problem_id"] in "bc", row["gain"]) == (True, 0.25)


def test_a_column_that_nobody_reads_changes_no_plan(tmp_path: Path) -> None:
    store = Store(tmp_path)
    problems, known = [store.put("problems", PROBLEMS)], {"problem_id": ["a", "b"], "spo.value": [0.5, 0.25]}
    config = CurateConfig.model_validate({"sampler": "spo", "tracked": {"spo.value": ("problem_id",)}})

    def plan(**columns: Any) -> str:
        rows = store.put("trackers", pa.table({**known, **columns}))
        return planned(store, Call("curate", config, {"problems": problems, "trackers": [rows]}), run="", seed=0).output

    assert plan(**{"spo.beta": [1, 2]}) == plan(**{"spo.beta": [9.5, 2]}) == plan()
    assert len({plan(), plan(**{"spo.value": [0.5, 0.5]}), plan(problem_id=["a", "c"])}) == 3


KEYS = st.sampled_from(["p", "q", "r", "s", None])
TABLES = st.dictionaries(st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 2))), st.integers(-9, 9), max_size=8)


def rows_of(kept: Mapping[tuple[Any, Any], int], order: Sequence[int] | None = None) -> pa.Table:
    keys = list(kept)
    keys = [keys[i] for i in order] if order else keys
    columns = {"x": [x for x, _ in keys], "y": [y for _, y in keys], "value": [kept[key] for key in keys]}
    return changed_rows(columns, ("x", "y"), ("value",))


@pytest.mark.slow
@given(TABLES, TABLES, st.randoms(use_true_random=False))
def test_merging_keeps_rows_that_did_not_change_and_does_not_depend_on_the_order(
    before: dict[tuple[Any, Any], int], changed: dict[tuple[Any, Any], int], random: Any
) -> None:
    order = list(range(len(changed)))
    random.shuffle(order)
    by = ("x", "y")
    first = merged(None, rows_of(before), by)
    one, other = (merged(first, rows_of(changed, each), by) for each in (None, order))
    assert one.equals(other)
    found = {(row["x"], row["y"]): row["value"] for row in one.to_pylist()}
    assert found == {**before, **changed}
    beside = with_tracked(candidates(PROBLEMS, None), {"t.value": by}, [named(one, "t", by)])
    assert "t.value" not in beside  # problems have no such keys


def test_numbers_are_equal_whatever_their_type_and_columns_that_are_not_kept_yet_are_null() -> None:
    own = named(
        changed_rows({"problem.level": [2, 1], "value": [0.5, 0.25]}, ("problem.level",), ("value",)),
        "t",
        ("problem.level",),
    )
    tracked = {"t.value": ("problem.level",), "u.value": ("problem_id",)}
    rows = with_tracked(candidates(PROBLEMS, None), tracked, [own])
    assert rows["t.value"].tolist()[:2] == [0.25, 0.5]
    assert np.isnan([rows["t.value"][2], *rows["u.value"]]).all()
