"""The search for the round from which an auditor disagrees: by Fisher's test of SciPy, on steps, on noise; labels."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact

from gradus.data.errors import BadInputError
from gradus.tasks.inspect.agreement.labels import ask_for, read_labels, write_label
from gradus.tasks.inspect.agreement.numbers import Audited, chosen_rows, fisher, search


def audited(rows: int, differ: int) -> Audited:
    return {"round": 0, "rows": rows, "differ": differ}


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_p_is_that_of_fishers_exact_test(first: int, second: int, data: st.DataObject) -> None:
    one, other = data.draw(st.integers(0, first)), data.draw(st.integers(0, second))
    expected = fisher_exact([[one, first - one], [other, second - other]], alternative="greater")[1]
    assert fisher(audited(first, one), audited(second, other)) == pytest.approx(expected, abs=1e-12)


@given(st.integers(2, 60), st.data())
def test_a_step_is_found_by_few_rounds(num_rounds: int, data: st.DataObject) -> None:
    rounds = sorted(data.draw(st.sets(st.integers(1, 500), min_size=num_rounds, max_size=num_rounds)))
    begin = data.draw(st.sampled_from(rounds[1:]))
    asked: list[int] = []

    def audit(index: int) -> Audited:
        asked.append(index)
        return {"round": index, "rows": 8, "differ": 6 if index >= begin else 1}

    found = search(rounds, audit)
    assert found["round"] == begin
    assert len(asked) == len(set(asked)) <= 2 + np.ceil(np.log2(num_rounds))
    assert [each["round"] for each in found["audited"]] == sorted(asked)


def test_no_step_is_found_where_the_last_round_is_as_the_first() -> None:
    found = search([1, 2, 3], lambda index: {"round": index, "rows": 20, "differ": 2 + (index == 2)})
    assert (found["round"], len(found["audited"])) == (None, 2)
    assert found["p"] == pytest.approx(fisher_exact([[2, 18], [2, 18]], alternative="greater")[1])
    with pytest.raises(ValueError, match="one round alone"):
        search([1], lambda index: audited(1, 0))


def test_a_noisy_step_is_found_within_a_round_nine_times_in_ten() -> None:
    rng = np.random.default_rng(0)
    near = 0
    for _ in range(200):
        begin = int(rng.integers(3, 10))
        rates = [0.5 if index >= begin else 0.02 for index in range(11)]
        found = search(range(1, 11), lambda i, r=rates: {"round": i, "rows": 16, "differ": int(rng.binomial(16, r[i]))})
        near += found["round"] is not None and abs(found["round"] - begin) <= 1
    assert near >= 170


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40), st.integers(1, 40), st.integers(0, 9)
)
def test_doubted_rows_come_first_then_right_and_wrong_ones_in_turn(
    rows: list[tuple[bool, bool]], num_rows: int, seed: int
) -> None:
    right, doubted = (np.array(each) for each in zip(*rows, strict=True))
    found = chosen_rows(right, doubted, num_rows, np.random.default_rng(seed))
    assert len(found) == len(set(found.tolist())) == min(num_rows, len(rows))
    num_doubted = min(num_rows, int(doubted.sum()))
    assert doubted[found[:num_doubted]].all()
    rest, plain = right[found[num_doubted:]], right[~doubted]
    if len(rest) <= 2 * min(plain.sum(), (~plain).sum()):
        assert abs(int(rest.sum()) - int((~rest).sum())) <= 1


def test_labels_are_asked_for_once_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    assert read_labels(file) == {}
    ask_for(file, [{"rollout_id": "a", "completion": "ü"}, {"rollout_id": "b", "completion": "1"}])
    file.write_text(file.read_text().replace("null", "true", 1).rstrip("\n"))
    ask_for(file, [{"rollout_id": "a", "completion": "ü"}, {"rollout_id": "c", "completion": "2"}])
    assert read_labels(file) == {"a": True, "b": None, "c": None}
    assert [json.loads(line)["rollout_id"] for line in file.read_text().splitlines()] == ["a", "b", "c"]


def test_a_label_is_set_in_its_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    ask_for(file, [{"rollout_id": name, "completion": "a\u2028b\x85c"} for name in "ab"])
    with file.open("a") as written:
        written.write("not JSON\n")
    write_label(file, "b", label=False)
    first, second, other = file.read_text().split("\n")[:3]
    assert (json.loads(first)["correct"], json.loads(second)["correct"], other) == (None, False, "not JSON")
    assert json.loads(second)["completion"] == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "line 2 is not valid JSON"),
        ("[1]", "line 2 has no rollout_id"),
        ('{"rollout_id": "a", "correct": 1}', "no label"),
    ],
)
def test_a_line_that_is_no_label_is_named(tmp_path: Path, line: str, fault: str) -> None:
    file = tmp_path / "labels.jsonl"
    file.write_text(f'{{"rollout_id": "x", "correct": false}}\n{line}\n')
    with pytest.raises(BadInputError, match=fault):
        read_labels(file)
