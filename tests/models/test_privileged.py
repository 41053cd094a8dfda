"""Log-probs behind a prompt that says more, against a plain forward pass over a prompt written out here."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.components.rows import Lists, Marks
from gradus.models.measures.privileged import privileged
from gradus.models.measuring import Model
from gradus.models.policy import Policy, load_policy
from gradus.tasks.preflight.checks import SAMPLES

TARGETS = [[4, 5], [7], [9, 1, 2], [3], [6]]
TEXTS = np.array(["one", "two", "three", "four", "five"], dtype=np.object_)
HINTS = [["add", None, "one and one"]] * 3 + [["two", None], None]


class Given(dict[str, Any]):
    """Columns of rows, marks of them, and what critiques say: of row 2 twice, of row 4, of a row of another round."""

    num_rows = len(TARGETS)

    def marks(self, name: str) -> Marks:
        assert name == "feedback"
        row, none = np.array([0, 1, 3, 3]), np.zeros(4)
        return Marks(row, none, none, none, np.array(["wrong sum", None, "{question}", "slow"], dtype=np.object_))

    def others(self, use: str) -> dict[str, Any]:
        assert use == "critique"
        texts = np.array(["no", "not his", None, "never", "ok"], dtype=np.object_)
        return {"about": np.array([[2], [-1], [0], [2], [4]]), "completion": texts}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(SAMPLES / "policy")


def given() -> Given:
    values = np.array([token for target in TARGETS for token in target])
    return Given(
        {
            "completion": TEXTS,
            "completion_tokens": Lists(values, np.cumsum([0, *map(len, TARGETS)])),
            "temperature": np.array([1.0, 0.5, 1.0, 1.0, np.nan]),
            "correct": np.array([1.0, 1.0, 0.0, 1.0, np.nan]),
            "group": np.array([0, 0, 0, 1, 1]),
            "problem.question": np.array(["1 + 1 ="] * 3 + ["2 + 2 ="] * 2, dtype=np.object_),
            "problem.solution": np.array(["It is {answer}."] * 3 + [None] * 2, dtype=np.object_),
            "hint.texts": np.array(HINTS, dtype=np.object_),
            "problem.answer": np.array(["2"] * 3 + ["4"] * 2, dtype=np.object_),
        }
    )


def plain(policy: Policy, text: str, target: list[int], temperature: float = 1.0) -> list[float]:
    """Log-probs of the target behind the prompt of a text, by one forward pass."""
    (context,) = Model(policy).prompts([text])
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([context + target])).logits[0, len(context) - 1 : -1].double()
    return torch.log_softmax(logits / temperature, -1)[range(len(target)), target].tolist()


def asked(policy: Policy, template: str) -> list[list[float] | None]:
    rows: Any = given()
    return privileged(rows, Model(policy), template=template)["logp"].to_pylist()


def test_the_solution_is_shown_and_its_braces_are_no_names(policy: Policy) -> None:
    found = asked(policy, "{question} {solution} So")
    text = "1 + 1 = It is {answer}. So"
    for row, temperature in ((0, 1.0), (1, 0.5), (2, 1.0)):
        assert found[row] == pytest.approx(plain(policy, text, TARGETS[row], temperature), abs=1e-4)
    assert found[3:] == [None, None]  # these problems have no solution


def test_a_right_completion_of_the_group_that_is_not_the_rows_own_is_shown(policy: Policy) -> None:
    found = asked(policy, "{question} {peer}")
    shown = {0: "1 + 1 = two", 1: "1 + 1 = one", 2: "1 + 1 = one", 4: "2 + 2 = four"}
    temperatures = {1: 0.5}
    for row, text in shown.items():
        expected = plain(policy, text, TARGETS[row], temperatures.get(row, 1.0))
        assert found[row] == pytest.approx(expected, abs=1e-4)
    assert found[3] is None  # alone in being right


@pytest.mark.parametrize(
    ("template", "level", "shown"),
    [
        ("{question} {hint}", 0, {0: "1 + 1 = one and one", 1: "1 + 1 = one and one", 3: "2 + 2 = two"}),
        ("{question} {hint}", 1, {0: "1 + 1 = add", 2: "1 + 1 = add", 3: "2 + 2 = two"}),
        ("{question} {hint}", 2, {}),
        ("{hint} {question}", 3, {1: "one and one 1 + 1 ="}),
        ("{question} {feedback}", 0, {0: "1 + 1 = wrong sum", 3: "2 + 2 = {question}\n\nslow"}),
        ("{question} {critique}", 0, {2: "1 + 1 = no\n\nnever", 4: "2 + 2 = ok"}),
        ("{question} {critique} {peer}", 0, {2: "1 + 1 = no\n\nnever one", 4: "2 + 2 = ok four"}),
    ],
)
def test_hints_of_a_level_and_what_was_said_of_a_row_are_shown(
    policy: Policy, template: str, level: int, shown: dict[int, str]
) -> None:
    rows: Any = given()
    found = privileged(rows, Model(policy), template=template, level=level)["logp"].to_pylist()
    of_hints = {0, 1, 2} if level in (0, 1, 3) else set[int]()
    of_hints |= {3} if level in (0, 1) else set()
    assert {row for row in range(5) if found[row]} == (of_hints if "hint" in template else shown.keys())
    for row, text in shown.items():
        temperature = 0.5 if row == 1 else 1.0
        assert found[row] == pytest.approx(plain(policy, text, TARGETS[row], temperature), abs=1e-4)


def test_the_usual_template_shows_question_and_solution(policy: Policy) -> None:
    seen: list[str] = []

    def prompts(texts: list[str]) -> list[list[int]]:
        seen.extend(texts)
        return [[5]] * len(texts)

    def logprobs(contexts: list[list[int]], targets: Lists, temperature: Any) -> SimpleNamespace:
        assert len(temperature) == len(targets)
        return SimpleNamespace(logp=[np.full(len(targets[row]) * bool(contexts[row]), -1.0) for row in range(5)])

    model, rows = (SimpleNamespace(prompts=prompts, logprobs=logprobs), given())
    found = privileged(cast("Any", rows), cast("Any", model))["logp"].to_pylist()
    assert len(seen) == 3
    assert all(text.startswith("1 + 1 =\n\n") and "It is {answer}." in text for text in seen)
    assert found[2] == [-1.0] * 3


def test_without_anything_to_show_the_column_is_still_one_of_lists(policy: Policy) -> None:
    rows: Any = given() | {"correct": np.zeros(5)}
    found = privileged(Given(rows), Model(policy), template="{question} {peer}")["logp"]  # pyright: ignore[reportArgumentType]
    assert pa.types.is_list(found.type)
    assert found.null_count == 5
