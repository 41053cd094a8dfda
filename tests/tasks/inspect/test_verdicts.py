"""Verdicts on pairs, what a plan foresees, bands of difficulty, clusters of problems: by hand and by simulation."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.intervals import crossed, detectable
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.score import MARGIN
from gradus.tasks.inspect.comparing.planning import Variances, plan_remarks, refuse_unknown_column, sealed
from gradus.tasks.inspect.comparing.report import by_difficulty, judge_pairs, too_narrow
from gradus.tasks.inspect.comparing.trainings import clusters_of


def differences(rng: np.random.Generator, effect: float, over_seeds: float = 0.003, problems: int = 2000) -> np.ndarray:
    return effect + over_seeds * rng.standard_normal((5, 1)) + 0.1 * rng.standard_normal((5, problems))


def verdicts_of(values: dict[str, np.ndarray], margin: float, planned: float) -> dict[str, str]:
    found = judge_pairs([(name, "base", each) for name, each in values.items()], margin, planned)
    return {each["method"]: each["verdict"] for each in found}


def test_the_four_verdicts() -> None:
    rng = np.random.default_rng(1)
    values = {
        "up": differences(rng, 0.05),
        "down": differences(rng, -0.05),
        "alike": differences(rng, 0.0),
        "a little better": differences(rng, 0.008, over_seeds=0.0),  # shown, and within the margin
        "noisy": differences(rng, 0.0, over_seeds=0.05),
    }
    assert verdicts_of(values, 0.03, 0.02) == {
        "up": "better",
        "down": "worse",
        "alike": "equivalent",
        "a little better": "equivalent",
        "noisy": "undecided",
    }


def test_nothing_is_equivalent_at_a_margin_below_what_can_be_detected() -> None:
    values = differences(np.random.default_rng(1), 0.0)
    assert verdicts_of({"alike": values}, 0.02, 0.021) == {"alike": "undecided"}
    (judged,) = judge_pairs([("alike", "base", values)], 0.004)
    assert judged["detectable"] > 0.004
    assert judged["verdict"] == "undecided"
    assert "`equivalent` cannot be concluded" in too_narrow([judged], 0.004)[0]
    assert too_narrow([judged], 0.02) == []
    assert "of the plan is 2.1 points" in too_narrow([judged], 0.02, 0.021)[0]


def test_of_many_equal_pairs_no_more_than_one_family_in_twenty_has_a_difference() -> None:
    rng, families = np.random.default_rng(4), 200
    wrong = 0
    for _ in range(families):
        pairs = [(f"{i}", "base", differences(rng, 0.0, over_seeds=0.02, problems=60)) for i in range(6)]
        wrong += any(each["verdict"] in ("better", "worse") for each in judge_pairs(pairs, MARGIN))
    assert wrong / families <= 0.08


def test_what_is_called_detectable_is_detected_in_four_of_five_comparisons() -> None:
    planned = Variances(seeds=0.02**2, problems=0.05**2, rest=0.0, sample=0.3)
    size = seeds, problems, samples = 5, 100, 4
    effect = planned.detectable(size, pairs=1)
    rng, found = np.random.default_rng(6), 0
    for _ in range(500):
        values = effect + 0.02 * rng.standard_normal((seeds, 1)) + 0.05 * rng.standard_normal((1, problems))
        values = values + np.sqrt(0.3 / samples) * rng.standard_normal((seeds, problems))
        (judged,) = judge_pairs([("one", "other", values)], MARGIN)
        found += judged["p_different"] <= 0.05
    assert 0.74 <= found / 500 <= 0.86
    assert planned.detectable((10, 100, 4), 1) < effect < planned.detectable((5, 100, 4), 6)
    assert Variances(0.0, 0.0, 0.0, 0.0).detectable((2, 12, 1), 1) > 0.2  # twelve problems that agree detect nothing
    assert planned.detectable((1, 400, 4), 1) < planned.detectable((1, 100, 4), 1)


def test_the_smallest_detectable_difference_of_students_test_by_scipy() -> None:
    from scipy import optimize, stats

    def power(shift: float) -> float:
        return float(stats.nct.sf(stats.t.ppf(0.975, 4), 4, shift) - 0.8)

    assert detectable(2.0, 4.0) == pytest.approx(2 * optimize.brentq(power, 1, 10), rel=1e-5)
    assert detectable(1.0, np.inf) == pytest.approx(1.95996 + 0.84162, abs=1e-4)


def test_a_plan_names_few_problems_and_a_margin_that_cannot_be_shown() -> None:
    few, narrow = plan_remarks(144, 0.041, 0.02, measured=True)
    assert "144 problems of evaluation are fewer than 500" in few
    assert "below the smallest detectable difference of 4.1" in narrow
    assert plan_remarks(500, 0.019, 0.02, measured=True) == []
    plan = {"methods": ["a"], "digest": ""}
    assert sealed(plan) == sealed({**plan, "digest": sealed(plan)}) != sealed({**plan, "methods": ["b"]})


def test_without_training_no_band_of_difficulty_moves() -> None:
    rng = np.random.default_rng(2)
    rate = rng.beta(1, 1, size=4000)
    n, k = np.full(4000, 8), rng.binomial(8, rate)
    bands = by_difficulty(n, k, {"same": rng.binomial(8, rate, size=(3, 4000)) / 8})
    assert [band["band"] for band in bands] == ["never solved", "less than half", "half or more", "always solved"]
    for band in bands:  # by the same samples: 0.00 before and 0.10 after in the first
        assert band["before"] == pytest.approx(band["pass_at_1"]["same"], abs=0.03)
    single = by_difficulty(np.ones(4, int), np.array([0, 1, 1, 0]), {"same": np.ones((1, 4))})
    assert [band["before"] for band in single] == [None, None]


def evaluated(root: Path, rows: list[dict[str, str]]) -> tuple[Store, Ref]:
    store = Store(root)
    ids = [row["problem_id"] for row in rows]
    problems = store.put("problems", pa.Table.from_pylist([{"question": "?", **row} for row in rows]))
    ref = Ref("evaluations", "e" * 32)
    writer = store.writer(ref)
    counts = {"checkpoint": ["c"] * len(ids), "suite": ["s"] * len(ids), "problem_id": ids}
    writer.write_table(pa.table({**counts, "n": [1] * len(ids), "k": [0] * len(ids)}))
    writer.commit(parents={"problems": [str(problems)]})
    return store, ref


def test_clusters_are_read_from_a_column_or_from_what_a_row_had_beside_ours(tmp_path: Path) -> None:
    rows = [{"problem_id": f"p{i}", "source": "a" if i < 4 else "b"} for i in range(6)]
    for i, row in enumerate(rows[:5]):
        row["extra"] = json.dumps({"template": f"t{i % 2}", "one": 1})
    store, ref = evaluated(tmp_path, rows)
    ids = pa.array([f"p{i}" for i in range(6)])
    by_template, by_source = clusters_of(store, ref, ids, ""), clusters_of(store, ref, ids, "source")
    assert by_template is not None
    assert len(set(by_template.tolist())) == 3  # the last has no template and is alone
    assert (by_template[0], by_template[1]) == (by_template[2], by_template[3])
    assert by_source is not None
    assert len(set(by_source[:4])) == len(set(by_source[4:])) == 1
    with pytest.raises(BadInputError, match="--cluster nonesuch: the evaluated problems have no such column"):
        clusters_of(store, ref, ids, "nonesuch")
    with pytest.raises(BadInputError, match="--cluster one: it is the same for all problems"):
        clusters_of(store, ref, ids.slice(0, 5), "one")


def test_a_column_that_a_file_of_problems_lacks_is_refused_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "?", "answer": "1", "template": "t1"}\n')
    refuse_unknown_column(str(file), "template")
    refuse_unknown_column(str(file), "source")  # ingest has it
    refuse_unknown_column("bundled:heldout", "domain")
    with pytest.raises(UsageError, match="did you mean domain"):
        refuse_unknown_column("bundled:heldout", "domian")
    refuse_unknown_column("problems/0a1b", "nonesuch")  # known when it is read
    with pytest.raises(UsageError, match=r"--cluster templte: the problems of .* have no such column"):
        refuse_unknown_column(str(file), "templte")


def test_a_difference_is_of_the_seeds_and_problems_that_are_paired() -> None:
    values = differences(np.random.default_rng(3), 0.01)
    (judged,) = judge_pairs([("one", "other", values)], MARGIN)
    assert judged["difference"]["value"] == pytest.approx(float(crossed(values).mean))
    assert judged["by_seed"] == pytest.approx(values.mean(axis=1).tolist())


def test_a_problem_is_won_by_the_method_that_alone_has_the_highest_rate() -> None:
    one = np.array([[0.5, 0.2, 1.0, 0.3, 0.1 + 0.2]])
    other, third = np.array([[0.5, 0.1, 0.0, 0.4, 0.3]]), np.array([[0.0, 0.1, 1.0, 0.4, 0.3]])
    bands = by_difficulty(np.ones(5, int), np.zeros(5, int), {"one": one, "other": other, "third": third})
    assert [band["wins"] for band in bands] == [{"one": 1, "other": 0, "third": 0}]
