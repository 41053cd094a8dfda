"""CAPO by hand: numbered steps, the votes of critiques, the marks of wrong steps, the advantage of each token."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.components.rows import Marks
from gradus.data.curation.batch import BatchRows
from gradus.data.curation.by_use import of_use
from gradus.data.curation.round import round_of
from gradus.data.curation.shapes.parts import items, sentences, wrong_steps
from gradus.data.curation.uses import LEARN
from gradus.data.curation.waves.critical import lines, step_critiques
from gradus.data.lake.schema import SCORES
from gradus.models.objectives.advantages.process import capo
from gradus.models.objectives.rows import Rows
from gradus.models.rewards.judges.faults import judge
from gradus.models.rewards.marked import marks_of_verdict

TEXT = "2 + 2 = 4\n\n 4 + 1 = 6\n#### 6"


def test_a_wave_numbers_the_lines_of_an_answer_and_says_which_tokens_they_are() -> None:
    ends = [1, 4, 10, 12, 14, 22, 28, 28]  # eight tokens; the fourth begins in the blank line, the last is the end
    starts = [0, *ends[:-1]]
    rows = pa.table(
        {
            "problem_id": ["p", "q"], "group": [0, 1], "completion": [TEXT, "alone"],
            "problem.question": ["How much?", "?"], "problem.messages": pa.nulls(2),
            "token_starts": pa.array([starts, None], pa.list_(pa.int64())),
            "token_ends": pa.array([ends, None], pa.list_(pa.int64())),
        }
    )  # fmt: skip
    planned = step_critiques(round_of(rows), np.random.default_rng(0), n=3, template="{question}|{answer}")
    assert planned is not None
    assert lines(TEXT) == [(0, 9), (11, 21), (22, 28)]
    (asked,) = planned.columns["messages"].to_pylist()
    assert asked[0]["content"] == "How much?|1. 2 + 2 = 4\n2. 4 + 1 = 6\n3. #### 6"
    assert planned.columns["starts"].to_pylist() == [[0, 3, 6]]
    assert planned.columns["ends"].to_pylist() == [[3, 6, 7]]
    assert planned.columns["about"].to_pylist() == [["0"]]
    assert step_critiques(round_of(rows.slice(1)), np.random.default_rng(0)) is None


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("Step 2 is wrong.\n[[2, 4]]", [2, 4]),
        ("[[1]] no:\n[[]]", []),
        ("<think>[[9]]</think> [[3]] end", [3]),
        ("all is well", None),
        ("<think>[[3]]", None),
    ],
)
def test_a_critique_marks_the_steps_that_it_names(text: str, steps: list[int] | None) -> None:
    verdict = judge({"completion": text}, "", 0)
    assert verdict.value == (None if steps is None else 1.0)
    assert [mark.value for mark in marks_of_verdict(verdict)] == (steps or [])
    assert [text[mark.start : mark.end] for mark in marks_of_verdict(verdict)] == [str(step) for step in steps or []]


# x has steps of tokens 0-1 and 2-3. Of its three critiques that were read two call step 2 wrong, one of them twice, and
# one step 1; a fourth was not read. y has one step, which one of two calls wrong; step 7 is none.
SAID = [("x", [2, 2]), ("x", [1, 2]), ("x", []), ("x", None), ("y", [1, 7]), ("y", [])]
PLACES = {"x": ([0, 2], [2, 4]), "y": ([0], [3])}


def judged() -> pa.Table:
    num = len(SAID)
    marks = [
        None if steps is None else [{"name": "wrong", "start": 0, "end": 1, "value": float(step)} for step in steps]
        for _, steps in SAID
    ]
    columns: dict[str, Any] = {
        "rollout_id": ["x", "y", *(f"c{i}" for i in range(num))],
        "group": [0, 0, *range(1, 1 + num)],
        "reward": [1.0, 0.0, *(None if steps is None else 1.0 for _, steps in SAID)],
        "use": [None, None, *["critique"] * num],
        "about": [None, None, *([name] for name, _ in SAID)],
        "marks": pa.array([None, None, *marks], SCORES.type_of("marks")),
        "plan.starts": [None, None, *(PLACES[name][0] for name, _ in SAID)],
        "plan.ends": [None, None, *(PLACES[name][1] for name, _ in SAID)],
    }
    return pa.table(columns)


def test_a_majority_of_the_critiques_that_were_read_decides() -> None:
    rows = BatchRows(of_use(judged(), LEARN), beside=judged())
    found = wrong_steps(rows)
    assert found["marks"] == [[{"name": "wrong", "start": 2, "end": 4, "value": pytest.approx(2 / 3)}], []]
    assert found["steps"].tolist() == [1, 0]
    more = wrong_steps(rows, share=0.3)["marks"]
    assert [[mark["start"] for mark in each] for each in more] == [[0, 2], [0]]


def test_the_advantage_of_a_token_is_its_reward_over_those_of_the_group() -> None:
    marks = Marks(torch.tensor([0]), torch.tensor([1]), torch.tensor([2]), torch.tensor([1.0]), np.array([None]))
    mask = torch.tensor([True, True, True, True, False])
    reward, group = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0, 0])
    rows = Rows(
        {"reward": reward, "group": group}, {"x": torch.zeros(5)}, torch.tensor([2, 3]), mask, {"marks.wrong": marks}
    )
    # R = 2, 1 | 0, 0, (0): mean 3/4, std of four values sqrt((25 + 1 + 9 + 9) / 16 / 3)
    std = (44 / 48) ** 0.5
    expected = [1.25 / std, 0.25 / std, -0.75 / std, -0.75 / std]
    assert capo(rows, std_eps=0.0)[mask].tolist() == pytest.approx(expected)
    none = rows.adding({"reward": torch.zeros(2, dtype=torch.float64)})
    assert capo(none, process=0.0).tolist() == [0] * 5


def test_sentences_cover_the_tokens_of_a_completion() -> None:
    # Tokens of "I add. 2 + 2", "Then" and so on by their characters; the end of the first lies inside a token, which
    # belongs to the first sentence; "1.5" and an abbreviation's last stop without a space end none.
    text = "I add. So 1.5\n\nThen 3."
    starts, ends = [0, 1, 5, 9, 13, 15, 19], [1, 5, 9, 13, 15, 19, 22]
    rows = BatchRows(
        pa.table(
            {
                "completion": [text, None, "a. b", "no end"],
                "token_starts": pa.array([starts, None, None, [0, 3]], pa.list_(pa.int64())),
                "token_ends": pa.array([ends, None, None, [3, 6]], pa.list_(pa.int64())),
            }
        )
    )
    found = sentences(rows)
    places = [[(mark["start"], mark["end"]) for mark in each] for each in found["marks"]]
    assert places == [[(0, 3), (3, 5), (5, 7)], [], [], [(0, 2)]]
    assert {mark["name"] for each in found["marks"] for mark in each} == {"sentence"}
    assert found["sentences"].tolist() == [3, 0, 0, 1]
    by_lines = sentences(rows, end=r"\n+")["marks"][0]
    assert [(mark["start"], mark["end"]) for mark in by_lines] == [(0, 5), (5, 7)]


def test_lines_are_items_and_those_of_the_gold_answer_are_hits() -> None:
    text = "1. Heat\n2) Alien\n\n- heat\n*** -5 ***"
    ends = [2, 7, 11, 17, 18, 20, 26, 30, 35]  # the third token begins in line 1, the seventh ends in the last line
    rows = BatchRows(
        pa.table(
            {
                "completion": [text, "Heat", "Alien", None],
                "problem.answer": ["heat\n-5\n", "Heat", None, "7"],
                "token_starts": pa.array([[0, *ends[:-1]], None, [0], []], pa.list_(pa.int64())),
                "token_ends": pa.array([ends, None, [5], []], pa.list_(pa.int64())),
            }
        )
    )
    found = items(rows)
    assert [(each["start"], each["end"], each["value"]) for each in found["marks"][0]] == [
        (0, 2, 1.0),
        (2, 4, 0.0),
        (5, 7, 0.0),
        (7, 9, 1.0),
    ]
    assert found["marks"][1:] == [[], [{"name": "item", "start": 0, "end": 1, "value": 0.0}], []]
    assert (found["items"].tolist(), [*found["hits"]]) == ([4, 0, 1, 0], [2, 0, 0, 0])
    whole = items(rows, item=r"\d\S (.*)")["marks"][0]
    assert [each["value"] for each in whole] == [0.0, 0.0, 0.0, 0.0]  # the gold answer's lines are read likewise
