"""Trainings side by side, from journals and artifacts written by hand: figures, costs, what is refused and remarked."""

import hashlib
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.manifest import REPORT
from gradus.data.lake.schema import ROLLOUTS
from gradus.data.lake.store import Ref, Store
from gradus.flows.console.study_tables import render_comparison
from gradus.tasks.inspect.comparing.figures import START, Comparison, keep_comparison, plot
from gradus.tasks.inspect.comparing.planning import known_of
from gradus.tasks.inspect.comparing.report import Terms, compare
from gradus.tasks.inspect.comparing.trainings import Training, read_training
from gradus.tasks.runs.history import ComputedSeconds
from gradus.tasks.runs.journal import Journal
from gradus.tasks.tracking.facts import COMPARISON, COMPARISON_PICTURE, DIFFERENCES_TABLE, METHODS_TABLE

IDS = ("a", "b", "c", "d")


class Place:
    """A lake and a folder of runs; trainings in it cost what they are said to."""

    def __init__(self, root: Path) -> None:
        self.store, self.runs = Store(root / "lake"), root / "runs"

    def training(
        self,
        name: str,
        after: list[int],
        *,
        seed: int = 0,
        tokens: int = 100,
        before: Any = (0, 2, 4, 4),
        ids: Any = IDS,
    ) -> Training:
        """One round; N of four rollouts of each problem are right before and after it (-1: none was judged)."""
        journal = Journal(self.runs / name)
        (journal.folder / "run.json").write_text(json.dumps({"verb": "train", "seed": seed, "recipe": {"seed": seed}}))
        journal.run_started({"run": name})
        self.stage(journal, "evaluate", 0, "eval", self.evaluation(list(before), ids))
        self.stage(journal, "rollout", 0, "profile", self.rollouts(f"profile{seed}", 40))
        self.stage(journal, "rollout", 1, "train", self.rollouts(name, tokens))
        self.stage(journal, "rollout", 1, "eval", self.rollouts(f"eval{name}", 1000))
        self.stage(journal, "evaluate", 1, "eval", self.evaluation(after, ids))
        journal.run_finished(status="finished")
        return self.read(name)

    def read(self, name: str) -> Training:
        return read_training(self.store, self.runs / name, ComputedSeconds(self.runs))

    def stage(self, journal: Journal, stage: str, index: int, purpose: str, ref: Ref) -> None:
        """A stage of two seconds, or its reuse if another training has the artifact."""
        known = f'"{ref}"' in "".join(path.read_text() for path in self.runs.glob("*/events.jsonl"))
        label: Any = {"stage": stage, "round": index, "purpose": purpose, "output": str(ref)}
        if known:
            journal.stage_reused(**label)
        else:
            journal.stage_finished(journal.stage_started(**label, config={}, inputs={}), status="finished", seconds=2.0)

    def evaluation(self, right: list[int], ids: Any) -> Ref:
        judged = [0 if k < 0 else 4 for k in right]
        table = pa.table({"checkpoint": ["c"] * len(ids), "suite": ["s"] * len(ids), "problem_id": ids, "n": judged})
        table = table.append_column("k", pa.array([max(k, 0) for k in right]))
        return self.artifact("evaluations", table, {})

    def rollouts(self, name: str, tokens: int) -> Ref:
        return self.artifact("rollouts", ROLLOUTS.arrow.empty_table(), {"summary": {"tokens": tokens, "name": name}})

    def artifact(self, table: str, rows: pa.Table, report: Any) -> Ref:
        content = json.dumps([rows.to_pylist(), report])
        ref = Ref(table, hashlib.sha256(content.encode()).hexdigest()[:32])
        if self.store.find(ref) is None:
            writer = self.store.writer(ref)
            writer.write_table(rows)
            writer.write_file(REPORT, json.dumps(report).encode())
            writer.commit()
        return ref


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def found(place: Place) -> Comparison:
    """One method solves nothing more, the other everything, with two seeds each."""
    same = [place.training(f"same{s}", [0, 2, 4, 4], seed=s) for s in (0, 1)]
    better = [place.training(f"better{s}", [4, 4, 4, 4], seed=s, tokens=200) for s in (0, 1)]
    return compare({"same": same, "better": better}, Terms(budget="1 rounds"))


def test_figures_are_means_over_problems_and_seeds(found: Comparison) -> None:
    same, better = found["methods"]
    assert same["before"]["value"] == better["before"]["value"] == pytest.approx((0 + 0.5 + 1 + 1) / 4)
    assert same["gain"]["value"] == 0.0
    assert same["gain"]["low"] == -same["gain"]["high"] < -0.4  # four problems that did not change prove little
    assert better["gain"]["value"] == pytest.approx((1 + 0.5 + 0 + 0) / 4)
    assert (found["seeds"], found["problems"], same["seeds"], same["rounds"]) == (2, 4, [0, 1], [1, 1])
    (difference,) = found["differences"]
    assert (difference["method"], difference["than"]) == ("better", "same")
    assert difference["difference"]["value"] == pytest.approx(0.375)
    # two of four problems differ
    assert difference["difference"]["low"] < 0
    assert difference["difference"]["high"] > 0.8
    assert difference["verdict"] == "undecided"
    assert difference["by_seed"] == pytest.approx([0.375, 0.375])
    assert difference["shared_tokens"] == pytest.approx(2 * 40 / (140 + 240))  # the profile of each seed
    assert [side["tokens"] for side in difference["sides"]] == [240, 140]
    assert [seed["after"] for seed in better["by_seed"]] == [1.0, 1.0]
    assert found["start"] == "same"


def test_a_difference_at_every_problem_is_one(place: Place) -> None:
    worse, better = [place.training("worse", [0, 0, 0, 0])], [place.training("better", [4, 3, 4, 3])]
    (difference,) = compare({"worse": worse, "better": better})["differences"]
    assert difference["verdict"] == "better"
    assert difference["p_different"] < 0.02
    assert difference["difference"]["value"] == pytest.approx(0.875)


def test_a_gain_is_judged_as_a_difference_is(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: four problems that gain 1, 3/4, 1 and 3/4; the floor of the error is 3.841 / 7.841 / 3.182 = 0.1539.

    t = 0.875 / 0.1539 = 5.684 with 3 degrees of freedom; its two tails are 0.0108, twice that for two methods (Holm).
    """
    none = [0, 0, 0, 0]
    gained = [place.training("gained", [4, 3, 4, 3], before=none)]
    (gain,) = compare({"gained": gained})["gains"]
    assert (gain["method"], gain["than"], gain["verdict"]) == ("gained", "its start", "better")
    assert (gain["difference"]["value"], gain["by_seed"]) == (0.875, [0.875])
    assert gain["p_different"] == pytest.approx(0.0108, abs=1e-4)
    lost = [place.training("lost", none, before=[4, 3, 4, 3])]
    both = compare({"gained": gained, "lost": lost})
    assert [each["verdict"] for each in both["gains"]] == ["better", "worse"]
    assert [each["p_different"] for each in both["gains"]] == pytest.approx([2 * gain["p_different"]] * 2)
    render_comparison(both)
    said = " ".join(capsys.readouterr().out.split())
    assert "A is better than its start (+87.5 " in said
    assert "B is worse than its start (-87.5 " in said


def test_wins_are_told_by_difficulty(found: Comparison) -> None:
    assert [(b["band"], b["problems"], b["wins"]) for b in found["by_difficulty"]] == [
        ("never solved", 1, {"same": 0, "better": 1}),
        ("half or more", 1, {"same": 0, "better": 1}),
        ("always solved", 2, {"same": 0, "better": 0}),
    ]
    assert [b["before"] for b in found["by_difficulty"]] == [0.0, 0.5, 1.0]  # one of each half of `b` is right


def test_costs_leave_evaluation_out_and_count_a_shared_stage_for_each(found: Comparison) -> None:
    same, better = found["methods"]
    assert (same["tokens"], better["tokens"]) == (140, 240)
    assert same["stages"]["rollout"] == {"tokens": 140, "seconds": 4.0}  # the profile of `better` was reused
    assert better["stages"]["rollout"] == {"tokens": 240, "seconds": 4.0}
    assert better["stages"]["evaluation"] == {"tokens": 1000, "seconds": 6.0}
    assert (same["seconds"], better["seconds"]) == (4.0, 4.0)
    assert [point["tokens"] for point in better["curve"]] == [40, 240]
    assert (
        found["remarks"][0]
        == "not at equal cost under a budget of 1 rounds: better sampled 240 tokens a training, same 140"
    )


def test_one_seed_other_starts_and_problems_without_a_verdict_are_remarked(place: Place) -> None:
    one = [place.training("one", [4, -1, 4, 4])]
    other = [place.training("other", [0, 0, 0, 0], before=[4, 4, 4, 4])]
    found = compare({"one": one, "other": other})
    assert found["problems"] == 3
    assert found["remarks"] == [
        "1 of 4 problems are left out: some evaluation has no verdict",
        "the methods did not start from the same pass@1: one at 0.667, other at 1.000",
        "one seed: the intervals say how problems differ, not how another seed would",
        found["remarks"][-1],
    ]
    assert "above the margin of 2: `equivalent` cannot be concluded there" in found["remarks"][-1]
    assert found["start"] == "measured apart"


def test_variances_of_a_difference_are_those_of_stored_pairs_or_twice_those_of_one_method(place: Place) -> None:
    half = [place.training(f"half{s}", [4, 4, 0, 0], seed=s) for s in (0, 1)]
    none = [place.training(f"none{s}", [0, 0, 0, 0], seed=s) for s in (0, 1)]
    known = known_of({"half": half, "none": none})
    # the difference is 1, 1, 0, 0 with either seed: the mean square of problems is 2 * 4 * 0.25 / 3
    assert vars(known.variances) == {"seeds": 0.0, "problems": pytest.approx(1 / 3), "rest": 0.0, "sample": 0.0}
    assert (known.measured, known.runs, known.problems) == (True, ["half0", "half1", "none0", "none1"], 4)
    other = [half[0], place.training("other", [0, 0, 4, 4], seed=2)]
    alone = known_of({"other": other})
    # eight values 0.5 from their mean, and no seed or problem that is: the mean square of the rest is 8 * 0.25 / 3
    assert vars(alone.variances) == pytest.approx({"seeds": 0.0, "problems": 4 / 3, "rest": 4 / 3, "sample": 0.0})
    assert not known_of({"one": half[:1]}).measured


def test_other_problems_no_verdicts_and_unfinished_trainings_are_refused(place: Place) -> None:
    one = [place.training("one", [0, 0, 0, 0])]
    with pytest.raises(BadInputError, match="evaluated on other problems: 1 of 4 are missing, 1 are not among"):
        compare({"one": one, "two": [place.training("two", [0, 0, 0, 0], ids=("a", "b", "c", "e"))]})
    with pytest.raises(BadInputError, match="no problem has a verdict in every evaluation"):
        compare({"one": one, "three": [place.training("three", [-1, -1, -1, -1])]})
    Journal(place.runs / "one").run_started({"run": "one"})
    with pytest.raises(BadInputError, match="run one did not finish: the process was killed"):
        place.read("one")
    journal = Journal(place.runs / "two")
    journal.run_started({"run": "two"})
    place.stage(journal, "rollout", 2, "train", place.rollouts("late", 1))
    journal.run_finished(status="finished")
    with pytest.raises(BadInputError, match="run two has no evaluation after its last round"):
        place.read("two")
    (place.runs / "two" / "run.json").write_text('{"verb": "ingest"}')
    with pytest.raises(UsageError, match="run two is a single `ingest`"):
        place.read("two")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "begins"), [("x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("x.pdf", b"%PDF")])
def test_the_picture_is_of_the_kind_that_its_name_says(
    found: Comparison, tmp_path: Path, name: str, begins: bytes
) -> None:
    found["methods"][0]["method"] = found["differences"][0]["than"] = r"$\frac{1}{0}$ <b>" + "x" * 100
    with mpl.rc_context({"font.size": 31.0}):
        plot(found, tmp_path / name)
        assert mpl.rcParams["font.size"] == 31.0, "the caller's own drawing"
    assert (tmp_path / name).read_bytes().startswith(begins)


@pytest.mark.slow
def test_a_comparison_is_kept_as_whole_tables_that_repeat(found: Comparison, tmp_path: Path) -> None:
    keep_comparison(found, tmp_path)
    names = (METHODS_TABLE, DIFFERENCES_TABLE, COMPARISON)
    first = {name: (tmp_path / name).read_bytes() for name in names}
    methods = json.loads(first[METHODS_TABLE])
    same, better = (dict(zip(methods["columns"], row, strict=True)) for row in methods["data"])
    assert (same["method"], same["value"], same["gain_value"], same["runs"]) == ("same", 0.625, 0.0, "same0, same1")
    assert (better["method"], better["value"], better["gain_value"]) == ("better", 1.0, 0.375)
    table = json.loads(first[DIFFERENCES_TABLE])
    assert [row[:2] for row in table["data"]] == [["same", START], ["better", START], ["better", "same"]]
    difference = dict(zip(table["columns"], table["data"][2], strict=True))
    assert (difference["method"], difference["than"], difference["value"]) == ("better", "same", 0.375)
    assert (difference["verdict"], same["by_seed"]) == ("undecided", "0.6250, 0.6250")
    assert json.loads(first[COMPARISON]) == found
    assert (tmp_path / COMPARISON_PICTURE).read_bytes().startswith(b"\x89PNG")
    keep_comparison(found, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names} == first
