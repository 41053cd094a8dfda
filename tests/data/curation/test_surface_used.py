"""The tracker, the sampler and the wave of the response surface: counts by hand, chances against the model itself."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import special, stats

from gradus.data.curation.candidates import Candidates, candidates
from gradus.data.curation.round import Planned, Round, round_of
from gradus.data.curation.samplers.expected import surface as draw
from gradus.data.curation.surface.model import Counts, Layout, fit
from gradus.data.curation.tracked import Tracked, changed_rows, merged, named, with_tracked
from gradus.data.curation.trackers.surfaces import surface
from gradus.data.curation.waves.responsive import surface_hints

KEPT = ("rounds", "shares", "right", "wrong", "lengths")
COLUMNS = ("p", "sd", "logit", "gain", "logit_var", "gain_var", "covariance", "tokens", *KEPT)
BY = ("problem_id",)
SOLUTION = "1 + 1 = 2\n2 + 2 = 4\n"  # 20 characters
PROBLEMS = {"a": "sums", "b": "sums", "c": None}


def table_of(rows: list[dict[str, Any]]) -> pa.Table:
    """Rows whose texts are texts, though all are null."""
    found = pa.Table.from_pylist(rows)
    for name in {"hint_text", "origin", "problem.solution"} & {*found.column_names}:
        at = found.column_names.index(name)
        found = found.set_column(at, name, found.column(name).cast(pa.string()))
    return found


def round_with(rows: list[dict[str, Any]], index: int, counts: dict[str, tuple[int, int]] | None = None) -> Round:
    """A round of rollouts of a, b and c, of which n and k are known."""
    usual = {"correct": 0.0, "hint_level": 0, "hint_text": None, "origin": None, "length": 10, "temperature": 1.0}
    usual |= {"messages": None, "parent": None, "recall": None, "problem.solution": SOLUTION}
    whole = [
        {**usual, **row, "group": at, "problem.domain": PROBLEMS[row["problem_id"]]} for at, row in enumerate(rows)
    ]
    known = counts or {}
    problems = pa.table({"problem_id": [*PROBLEMS], "domain": [*PROBLEMS.values()], "question": ["?"] * 3})
    measured = pa.table(
        {"problem_id": [*known], "n": [n for n, _ in known.values()], "k": [k for _, k in known.values()]}
    )
    return round_of_problems(table_of(whole), candidates(problems, measured if known else None), index)


def round_of_problems(rows: pa.Table, pool: Candidates, index: int) -> Round:
    found = round_of(rows, index=index)
    return Round(found.rows, pool, index, 1, 0, found.groups, None, found.drawn)


def kept(rounds: list[Round], before: dict[str, Any] | None = None, **settings: Any) -> pa.Table:
    """The rows after some rounds, by way of the table that they are kept in."""
    table = changed_rows(before or {name: [] for name in (*BY, *COLUMNS)}, BY, COLUMNS)
    for each in rounds:
        found = surface(Tracked(table, keys=BY), each, **settings)
        table = merged(table, changed_rows(found, BY, COLUMNS), BY)
    return table


def entries(table: pa.Table) -> dict[str, list[tuple[float, ...]]]:
    return {row["problem_id"]: [*zip(*(row[name] for name in KEPT), strict=True)] for row in table.to_pylist()}


FIRST = [
    *({"problem_id": "a", "correct": float(at < 3), "length": 8 + at} for at in range(4)),
    *({"problem_id": "b"} for _ in range(4)),
    *({"problem_id": "b", "correct": 1.0, "hint_level": 1, "hint_text": SOLUTION[:10], "length": 4} for _ in range(2)),
]
OTHERS = [
    {"problem_id": "a", "origin": "expert"},
    {"problem_id": "a", "correct": None},
    {"problem_id": "a", "recall": "x"},
    {"problem_id": "a", "parent": "x"},
    {"problem_id": "a", "messages": [{"role": "user", "content": "?"}]},
    {"problem_id": "a", "temperature": 0.0},
    {"problem_id": "a", "hint_level": 1, "hint_text": "x", "problem.solution": None},
]


def test_counts_are_kept_by_round_and_share_and_others_do_not_count() -> None:
    one = round_with([*FIRST, *OTHERS], 1, {"c": (4, 1)})
    two = round_with([{"problem_id": "a"}, {"problem_id": "a", "hint_level": 1, "hint_text": "1 "}], 2)
    assert entries(kept([one])) == {
        "a": [(1, 0, 3, 1, 9.5)],
        "b": [(1, 0, 0, 4, 10), (1, 0.5, 2, 0, 4)],
        "c": [(0, 0, 1, 3, 0)],  # as measured before the round, of unknown length
    }
    assert entries(kept([one, two]))["a"] == [(1, 0, 3, 1, 9.5), (2, 0, 0, 1, 10), (2, 0.1, 0, 1, 10)]
    assert entries(kept([one, two], window=1)) == {
        "a": [(2, 0, 0, 1, 10), (2, 0.1, 0, 1, 10)],
        "b": [],
        "c": [(0, 0, 1, 3, 0)],
    }


def test_chances_are_those_of_the_model_for_the_newest_policy() -> None:
    table = kept([round_with(FIRST, 1, {"c": (4, 1)}), round_with([{"problem_id": "a"}], 2)])
    counts = Counts(  # problems a, b, c; policies of rounds 0, 1, 2
        np.array([0, 0, 1, 1, 2]),
        np.array([1, 2, 1, 1, 0]),
        np.array([0, 0, 0, 0.5, 0]),
        np.array([4, 1, 4, 2, 4]),
        np.array([3, 0, 0, 2, 1]),
    )
    model = fit(counts, Layout(3, np.array([0, 0, -1])))
    bare = model.predict(np.arange(3), np.full(3, 2), np.zeros(3))
    assert table.column("p").to_pylist() == pytest.approx(bare.rate, rel=1e-4)
    assert table.column("logit").to_pylist() == pytest.approx(bare.logit, abs=1e-4)
    assert np.sqrt(table.column("logit_var").to_pylist()) == pytest.approx(bare.error, rel=1e-4)
    whole = model.predict(np.arange(3), np.full(3, 2), np.ones(3))
    logit = np.add(table.column("logit").to_pylist(), table.column("gain").to_pylist())
    assert logit == pytest.approx(whole.logit, abs=1e-4)
    # Means of all answers without a hint to a (9.5 of 4 and 10 of one) and b; c has the mean of both.
    assert table.column("tokens").to_pylist() == pytest.approx([9.6, 10, 88 / 9])


def test_rounds_of_nothing_but_others_keep_nothing() -> None:
    assert kept([round_with(OTHERS, 1)]).num_rows == 0


def pool(**columns: list[float | None]) -> Candidates:
    num = len(next(iter(columns.values())))
    problems = pa.table({"problem_id": [f"p{at}" for at in range(num)], "question": ["?"] * num})
    n, k = columns.pop("n", None), columns.pop("k", None)
    measured = None if n is None else pa.table({"problem_id": problems.column("problem_id"), "n": n, "k": k})
    rows = candidates(problems, measured)
    table = rows.table
    for name in ("logit", "logit_var", "tokens"):
        table = table.append_column(f"surface.{name}", pa.array(columns.get(name, [None] * num), pa.float64()))
    return Candidates(table)


def test_a_draw_goes_by_signal_for_each_token() -> None:
    # p = 1/2, 1/10, 1/10 at half the tokens, certain: 1 - p^4 - (1-p)^4 = 7/8 and 0.3438.
    low = float(special.logit(0.1))
    rows = pool(logit=[0.0, low, low, 40.0], logit_var=[0.0] * 4, tokens=[20.0, 20.0, 10.0, 30.0])
    found = draw(rows, 4, np.random.default_rng(0), n=4)
    weight = dict(zip(found.index.tolist(), found.weight.tolist(), strict=True))
    signal = {0: 7 / 8, 1: 0.3438, 2: 2 * 0.3438}
    assert {at: weight[at] for at in signal} == pytest.approx(signal, abs=1e-9)  # the mean is 20 tokens
    assert found.index[-1] == 3
    assert weight[3] == pytest.approx(1e-12)
    assert not found.explored.any()
    sharp = draw(rows, 4, np.random.default_rng(0), n=4, power=2.0)
    assert dict(zip(sharp.index.tolist(), sharp.weight.tolist(), strict=True)) == pytest.approx(
        {**{at: each**2 for at, each in signal.items()}, 3: 1e-12}
    )
    first = [int(draw(rows, 1, np.random.default_rng(seed), n=4).index[0]) for seed in range(600)]
    expected = np.array([*signal.values(), 0.0]) / sum(signal.values()) * len(first)
    assert stats.chisquare(np.bincount(first, minlength=4)[:3], expected[:3]).pvalue > 1e-3


def test_a_draw_is_the_same_for_the_same_generator_and_takes_each_problem_once() -> None:
    rows = pool(logit=[0.1 * at for at in range(20)], logit_var=[1.0] * 20)
    one, two = (draw(rows, 15, np.random.default_rng(7)) for _ in range(2))
    assert one.index.tolist() == two.index.tolist()
    assert len(set(one.index.tolist())) == 15
    assert len(draw(rows, 99, np.random.default_rng(7)).index) == 20


def test_a_problem_that_the_surface_does_not_know_has_its_counts_or_what_is_known_of_all() -> None:
    nothing = draw(pool(n=[0, 0], k=[0, 0]), 2, np.random.default_rng(0))
    assert nothing.explored.all()
    assert nothing.weight[0] == nothing.weight[1]
    counted = draw(pool(n=[8, 8, 8, 0], k=[4, 0, 0, 0]), 4, np.random.default_rng(0))
    weight = dict(zip(counted.index.tolist(), counted.weight.tolist(), strict=True))
    assert weight[0] > weight[3] > weight[1] == weight[2]


def hinted(
    rows: list[dict[str, Any]], known: dict[str, list[float]], hints: list[tuple[Any, ...]], **more: Any
) -> Planned:
    """The plan of the wave: `known` has logit, gain and their variances by problem."""
    usual = {"correct": 0.0, "hint_level": 0, "hint_text": None, "origin": None, "problem.solution": SOLUTION}
    names = ("problem_id", "level", "text", "fraction", "leaks_answer")
    table = pa.Table.from_pylist([dict(zip(names, hint, strict=True)) for hint in hints])
    found = round_of(table_of([{**usual, **row} for row in rows]), hints=table)
    columns = {"problem_id": [*known], **dict.fromkeys(("logit", "gain", "logit_var", "gain_var", "covariance"))}
    columns |= {
        name: [each[at] for each in known.values()]
        for at, name in enumerate(("logit", "gain", "logit_var", "gain_var"))
    }
    columns["covariance"] = [0.0] * len(known)
    tracked = named(changed_rows(columns, BY, [*columns][1:]), "surface", BY)
    beside = with_tracked(found.rows, dict.fromkeys(tracked.column_names[1:], BY), [tracked])
    shown = Round(beside, found.candidates, 1, 1, 0, found.groups, table, found.drawn)
    plan = surface_hints(shown, np.random.default_rng(0), **more)
    assert plan is not None
    return plan


def of(name: str, group: int, verdicts: list[float | None], **more: Any) -> list[dict[str, Any]]:
    return [{"problem_id": name, "group": group, "correct": each, **more} for each in verdicts]


def texts(name: str) -> list[tuple[Any, ...]]:
    """A quarter, a half and three quarters of the solution."""
    return [(name, level, SOLUTION[: 5 * level], 0.9, False) for level in (1, 2, 3)]


def test_failed_groups_are_shown_the_hint_whose_chance_is_nearest_to_one_half() -> None:
    # Certain lines, so that answers move nothing: -2 + 4 s is 0 at one half, -3 + 4 s at three quarters.
    known = {"a": [-2.0, 4.0, 0.0, 0.0], "b": [-3.0, 4.0, 0.0, 0.0], "c": [-2.0, 4.0, 0.0, 0.0]}
    rows = [*of("a", 0, [0.0] * 4), *of("b", 1, [0.0] * 4), *of("c", 2, [0.0, 1.0])]
    plan = hinted(rows, known, [*texts("a"), *texts("b"), *texts("c")])
    assert plan.problem_id.to_pylist() == ["a", "b"]
    assert plan.columns["hint_level"].to_pylist() == [2, 3]
    assert plan.columns["hint_text"].to_pylist() == [SOLUTION[:10], SOLUTION[:15]]
    assert plan.columns["reason"].to_pylist() == [
        "all wrong with 0.00 of the solution, 0.50 expected with 0.50",
        "all wrong with 0.00 of the solution, 0.50 expected with 0.75",
    ]
    assert not any(plan.skipped.values())
    assert "group" not in plan.columns  # groups of their own
    lower = hinted(rows, known, [*texts("a"), *texts("b")], target=0.2)
    assert lower.columns["hint_level"].to_pylist() == [1, 2]  # 0.27 and 0.27; 0.5 is farther


@pytest.mark.parametrize(("num", "level"), [(1, 2), (8, 3)])
def test_the_answers_of_the_round_count(num: int, level: int) -> None:
    # Of an uncertain problem at p = 0.5 a hint is of no use, until wrong answers say that it is hard.
    at = np.linspace(-14, 14, 20_001)
    weight = np.exp(-(at**2) / 8) * special.expit(-at) ** num
    chances = [float((weight * special.expit(at + 2 * share)).sum() / weight.sum()) for share in (0.25, 0.5, 0.75)]
    assert 1 + int(np.argmin(np.abs(np.array(chances) - 0.5))) == level
    plan = hinted(of("a", 0, [0.0] * num), {"a": [0.0, 2.0, 4.0, 0.0]}, texts("a"))
    assert plan.columns["hint_level"].to_pylist() == [level]
    assert f"{chances[level - 1]:.2f} expected with" in plan.columns["reason"][0].as_py()


@pytest.mark.parametrize(("variance", "num"), [(25.0, 1), (0.25, 0)])
def test_a_hint_is_tried_while_its_gain_is_unknown(variance: float, num: int) -> None:
    # -7 + 0.75 g is -2.9, p = 0.05, at g = 5.4: 1.1 standard deviations of 5 away, 11 of 0.5.
    plan = hinted(of("a", 0, [0.0] * 8), {"a": [-7.0, 0.0, 0.01, variance]}, texts("a"))
    assert plan.num_rows == num
    assert plan.skipped["no hint is expected to help"] == 1 - num
    assert plan.columns["hint_level"].to_pylist() == [3] * num


def test_a_reason_is_said_for_each_group_that_is_left_alone() -> None:
    certain = [-2.0, 4.0, 0.0, 0.0]
    known = {"a": certain, "b": certain, "c": certain, "d": [-40.0, 1.0, 0.0, 0.0], "e": certain, "g": certain}
    shown = {"hint_level": 2, "hint_text": SOLUTION[:10]}
    hints = [*texts("a"), ("c", 1, "x", 0.5, True), *texts("d"), *texts("e"), *texts("f"), *texts("g")]
    rows = [
        *of("a", 0, [0.0, None]),
        *of("b", 1, [0.0]),
        *of("c", 2, [0.0]),
        *of("d", 3, [0.0]),
        *of("e", 4, [0.0], **shown),  # a half is the nearest and was shown
        *of("f", 5, [0.0]),
        *of("g", 6, [0.0], origin="expert"),
    ]
    plan = hinted(rows, known, hints)
    assert plan.num_rows == 0
    assert {reason: num for reason, num in plan.skipped.items() if num} == {
        "not every rollout was judged": 1,
        "no hint is left": 1,
        "the hint states the answer": 1,
        "no hint is expected to help": 2,
        "the tracker `surface` does not know the problem yet": 1,
    }


def test_without_a_solution_the_share_is_what_the_table_says() -> None:
    plan = hinted(
        of("a", 0, [0.0], **{"problem.solution": None}),
        {"a": [-2.0, 4.0, 0.0, 0.0]},
        [("a", 1, "think", 0.25, False), ("a", 2, "think hard", 0.5, False)],
    )
    assert plan.columns["hint_level"].to_pylist() == [2]
