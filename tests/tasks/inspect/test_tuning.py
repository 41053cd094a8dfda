"""Tuning: which problems are held out, which values are chosen, ties, edges, costs; by hand."""

from pathlib import Path

import numpy as np
import pytest

from gradus.data.errors import BadInputError
from gradus.tasks.inspect.comparing.planning import (
    Attempted,
    best_of,
    edge_remark,
    held_out,
    num_held_out,
    tune,
)
from gradus.tasks.inspect.comparing.report import Terms, compare
from gradus.tasks.inspect.comparing.trainings import Training
from tests.tasks.inspect.test_comparing import Place


def tried(lr: str) -> Attempted:
    """A value with one training of its name."""
    return {"values": {"lr": lr}, "runs": [lr]}


def test_a_fifth_is_held_out_at_least_fifty_at_most_half() -> None:
    assert [num_held_out(n) for n in (1, 4, 60, 100, 250, 500, 1319)] == [0, 2, 30, 50, 50, 100, 264]


def test_what_is_held_out_goes_by_the_digests_of_ids_and_clusters_stay_whole() -> None:
    # printf "tuning $ID" | sha256sum: b 48.., f 4b.., e 6f.., a 76.., c a0.., d eb..
    ids = ["a", "b", "c", "d", "e", "f"]
    assert held_out(ids).tolist() == [False, True, False, False, True, True]
    assert held_out(ids[::-1]).tolist() == [True, True, False, False, True, False]
    # clusters go by their first id: {b, c, d} first, {f} does not fit beside it
    assert held_out(ids, np.array([0, 1, 1, 1, 0, 2])).tolist() == [False, True, True, True, False, False]


def test_the_first_as_typed_of_equals_is_chosen_and_failures_never() -> None:
    assert best_of([0.2, 0.5, 0.5]) == 1
    assert best_of([None, 0.0, None]) == 1
    assert best_of([None, None]) is None


@pytest.mark.parametrize(
    ("tried", "chosen", "said"),
    [
        (["1e-5", "3e-5", "1e-4"], "1e-4", "m at update.lr=1e-4, the largest tried"),
        (["3e-5", "1e-5", "1e-4"], "1e-5", "m at update.lr=1e-5, the smallest tried"),
        (["1e-5", "3e-5", "1e-4"], "3e-5", ""),
        (["grpo", "dapo"], "grpo", ""),
    ],
)
def test_a_number_at_the_edge_of_what_was_tried_is_remarked(tried: list[str], chosen: str, said: str) -> None:
    method = {
        "method": "m",
        "tried": [{"values": {"update.lr": each}, "runs": [], "pass_at_1": 0.5} for each in tried],
        "chosen": {"update.lr": chosen},
    }
    remarks = edge_remark([method])
    assert [text.rpartition(": ")[2] for text in remarks] == ([said] if said else [])


def test_values_are_chosen_on_what_is_held_out_and_judged_on_the_rest(tmp_path: Path) -> None:
    place = Place(tmp_path)

    def trainings(value: str, *after: list[int]) -> list[Training]:
        return [place.training(f"lr{value}seed{seed}", k, seed=seed) for seed, k in enumerate(after, start=5)]

    # of a, b, c, d the digests hold out a and b, whose best is 2; at c and d value 1 is right
    found = [*trainings("1", [0, 2, 4, 4], [1, 1, 4, 4]), *trainings("2", [2, 2, 0, 0], [4, 4, 0, 0])]
    attempts: list[Attempted] = [{"values": {"lr": n}, "runs": [f"lr{n}seed5", f"lr{n}seed6"]} for n in ("1", "2", "9")]
    tuned = tune({"on": "", "methods": {"m": attempts}}, found, {"lr9seed5": "NaN"}, "")
    (method,) = tuned.figures["methods"]
    assert method["chosen"] == {"lr": "2"}
    assert [each["pass_at_1"] for each in method["tried"]] == [pytest.approx(4 / 16), pytest.approx(12 / 16), None]
    assert (tuned.figures["problems"], tuned.figures["seeds"]) == (2, [5, 6])
    # two profiles, one a seed, of 40 tokens, and four rounds of 100
    assert (tuned.figures["cost"]["trainings"], tuned.figures["cost"]["tokens"]) == (4, 2 * 40 + 4 * 100)
    assert tuned.figures["remarks"][0].startswith("1 values are left out")
    judged = compare({"m lr=2": [place.training("judged", [4, 4, 1, 2])]}, Terms(tuned=tuned))
    assert judged["problems"] == 2
    assert judged["methods"][0]["after"]["value"] == pytest.approx(3 / 8)
    assert judged.get("tuning") == tuned.figures


def test_problems_of_their_own_tune_whole_and_are_judged_nowhere(tmp_path: Path) -> None:
    place = Place(tmp_path)
    own = [place.training(f"own{n}", [n, n, n], before=[0, 0, 0], ids=("c", "x", "y")) for n in (1, 2)]
    tuned = tune({"on": "own.jsonl", "methods": {"m": [tried(t.run) for t in own]}}, own, {}, "")
    assert (tuned.figures["methods"][0]["chosen"], tuned.figures["problems"]) == ({"lr": "own2"}, 3)
    judged = [place.training("judged", [4, 4, 1, 2])]
    found = compare({"m": judged}, Terms(tuned=tuned))
    assert found["problems"] == 3
    assert found["remarks"][0] == "1 evaluated problems are left out: they are in own.jsonl, too"
    assert not [text for text in tuned.figures["remarks"] if "equally good" in text]
    whole = tune({"on": "own.jsonl", "methods": {"m": [tried("judged")]}}, judged, {}, "")
    with pytest.raises(BadInputError, match="no evaluated problem is left to judge"):
        compare({"m": judged}, Terms(tuned=whole))


def test_values_that_are_equally_good_are_remarked(tmp_path: Path) -> None:
    place = Place(tmp_path)
    found = [place.training(lr, [4, 2, 0, 0]) for lr in ("1e-5", "1e-4")]
    figures = tune({"on": "", "methods": {"m": [tried(t.run) for t in found]}}, found, {}, "").figures
    assert figures["methods"][0]["chosen"] == {"lr": "1e-5"}
    assert figures["remarks"][0] == "several values are equally good, and the first of them is taken: m"
