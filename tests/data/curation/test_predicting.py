"""CodeRL+'s wave and AutoTriton's gate, by hand."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows, ShapeError
from gradus.data.curation.round import Planned, round_of
from gradus.data.curation.shapes.gates import gated
from gradus.data.curation.waves.programs.predicting import predict_outputs
from gradus.data.lake.schema import SCORES
from tests.data.curation.tallies import measured

STDIN = {"tests": {"inputs": ["1", "2"], "outputs": ["2", "4"]}}
LONG = "x" * 999 + "\n"
TEMPLATE = "{program}|{input}"
WITH = {"final_output": "3\n", "variables": {"n": 1, "m": ["x"]}}


def said(program: str) -> str:
    return f"```\nno\n```\nBetter:\n```python\n{program}\n```\nDone."


def asked(rows: Sequence[tuple[Any, ...]], *, share: float = 0.9, seed: int = 0, **columns: Any) -> Planned:
    """A plan for rows of (group, correct, program or completion, problem's extra, what each test printed)."""
    group, correct, texts, extra, printed = zip(*rows, strict=True)
    whole = [text if text is None or "```" in text else said(text) for text in texts]
    marks = [
        [{"name": "program", "value": 0.0, "label": "0 of 2 tests"}]
        + [{"name": "test", "value": 0.0, "label": label} for label in labels]
        + [{"name": "variables", "value": None, "label": each} for each in columns.get("variables", ())]
        for labels in printed
    ]
    table = pa.table(
        {
            "problem_id": [f"p{each}" for each in group],
            "group": list(group),
            "correct": pa.array(correct, pa.bool_()),
            "completion": pa.array(whole, pa.string()),
            "extracted": [None if text is None else f"{text}\n"[:1000] for text in texts],
            "problem.extra": [each if each is None else json.dumps(each) for each in extra],
            "own_gold": pa.array(columns.get("own_gold", [None] * len(group)), pa.string()),
            "marks": pa.array(marks, SCORES.type_of("marks")),
        }
    )
    template = columns.get("template", TEMPLATE)
    found = predict_outputs(round_of(table), np.random.default_rng(seed), share=share, template=template)
    assert found is not None
    return found


def questions(plan: Planned) -> list[tuple[str, str]]:
    prompts = [each[0]["content"] for each in plan.columns["messages"].to_pylist()]
    return list(zip(prompts, plan.columns["own_gold"].to_pylist(), strict=True))


def gold(output: str) -> str:
    return json.dumps({"final_output": output})


def test_failed_programs_that_ran_are_asked_about() -> None:
    rows = [
        (0, False, "a", STDIN, ["3\n"]),
        (0, True, "b", STDIN, ["2\n", "4\n"]),  # right
        (0, None, "c", STDIN, ["3\n"]),  # no verdict
        (1, False, "d", STDIN, ["NameError: d"]),  # it raised
        (1, False, "e", STDIN, [" \n"]),  # it printed nothing
        (1, False, "f", STDIN, []),  # it was not run
        (1, False, "g", None, ["3\n"]),  # no tests
        (2, False, "h", STDIN, ["late\n", "5\n"]),
        (2, False, "i", STDIN, [LONG[1:]]),
        (2, False, "j", STDIN, [LONG]),  # it may be cut
        (2, False, None, STDIN, []),
    ]
    plan = asked(rows)
    found = dict(questions(plan))
    assert found.pop("a|1") == gold("3\n")
    assert found.pop("i|1") == gold(LONG[1:])
    ((last, held),) = found.items()
    assert (last, held) in {("h|1", gold("late\n")), ("h|2", gold("5\n"))}
    assert plan.problem_id.to_pylist() == ["p0", "p2", "p2"]
    assert not {"group", "use", "origin", "n", "trained_prompt", "hint_text"} & {*plan.columns}
    drawn = {prompt for seed in range(20) for prompt, _ in questions(asked(rows, seed=seed))}
    assert {"h|1", "h|2"} <= drawn


def test_rows_that_are_questions_themselves_are_not_asked_about() -> None:
    rows = [(0, False, "a", STDIN, ["3\n"]), (0, False, "b", STDIN, ["4\n"])]
    assert [prompt for prompt, _ in questions(asked(rows, own_gold=[gold("1\n"), None]))] == ["b|1"]


def test_an_input_with_its_output_is_asked_once() -> None:
    rows = [(0, False, name, STDIN, [printed]) for name, printed in (("a", "3\n"), ("b", "3\n"), ("c", "4\n"))]
    assert questions(asked(rows)) == [("a|1", gold("3\n")), ("c|1", gold("4\n"))]


def test_variables_are_asked_by_name_and_stand_in_the_gold() -> None:
    rows = [(0, False, "a", STDIN, ["3\n", "4\n"])]
    held = ['{"n": 1, "m": ["x"]}', "{}"]
    drawn = [dict(questions(asked(rows, variables=held, template="", seed=seed))) for seed in range(20)]
    found = {prompt.split("Follow")[1]: json.loads(own) for each in drawn for prompt, own in each.items()}
    values = "and the last values of the variables"
    asks = " it step by step. End with a line of JSON that states all that it prints"
    assert found == {
        f'{asks}, {values} n, m: {{"final_output": "...", "variables": {{"name": value}}}}': WITH,
        f'{asks}: {{"final_output": "..."}}': {"final_output": "4\n"},
    }
    for template, said in ((TEMPLATE, ("a|1", gold("3\n"))), ("{program}|{variables}", ("a|n, m", json.dumps(WITH)))):
        assert questions(asked([(0, False, "a", STDIN, ["3\n"])], variables=held[:1], template=template)) == [said]


@pytest.mark.parametrize("label", [None, "", "no JSON", "[1]", "3"])
def test_a_mark_of_another_reward_names_no_variables(label: str | None) -> None:
    rows = [(0, False, "a", STDIN, ["3\n"])]
    assert questions(asked(rows, variables=[label], template="{program}|{variables}")) == [("a|", gold("3\n"))]


@pytest.mark.parametrize(("share", "num"), [(0.4, 2), (0.5, 3), (0.24, 0), (0.25, 1), (0.75, 9), (0.9, 12)])
def test_questions_are_a_share_of_the_groups(share: float, num: int) -> None:
    # Of three groups: share / (1 - share) * 3.
    rows = [(at % 3, False, f"p{at}", STDIN, [f"{at}\n"]) for at in range(12)]
    plan = asked(rows, share=share)
    assert plan.num_rows == num
    assert plan.skipped == {"more programs than their share": 12 - num}
    drawn = {prompt for seed in range(30) for prompt, _ in questions(asked(rows, share=share, seed=seed))}
    assert len(drawn) == (12 if num else 0)


@pytest.mark.parametrize(
    ("tests", "given"),
    [
        ({"inputs": ["7"], "outputs": ["1"]}, "7"),
        ({"inputs": ["7"], "outputs": ["1"], "fn_name": ""}, "7"),
        ({"inputs": ["7"], "outputs": ["1"], "fn_name": "f"}, None),
        ({"inputs": [[7]], "outputs": [1]}, None),
        ([{"input": "7", "output": "1"}], "7"),
        ([{"stdin": "7", "stdout": "1"}], "7"),
        ([{"input": "7", "output": "1", "testtype": "stdin"}], "7"),
        ([{"input": "7", "output": "1", "testtype": "functional"}], None),
        ([{"input": "7", "args": [1], "returns": 2}], None),
        (["assert f(1) == 2"], None),
        ("assert f(1) == 2", None),
        ({"inputs": 3}, None),
        (None, None),
    ],
)
def test_tests_of_standard_input_have_an_input(tests: Any, given: str | None) -> None:
    plan = asked([(0, False, "a", {"tests": tests}, ["3\n"])])
    assert [prompt for prompt, _ in questions(plan)] == ([] if given is None else [f"a|{given}"])


def test_a_program_is_whole_however_long_and_that_which_was_judged() -> None:
    long = "\n".join(f"print({number})" for number in range(200))
    rows = [(0, False, text, STDIN, [f"{at}\n"]) for at, text in enumerate((long, "print(1)"))]
    assert [prompt for prompt, _ in questions(asked(rows))] == [f"{long}|1", "print(1)|1"]
    other = [(0, False, "```\nprint(2)\n```", STDIN, ["3\n"])]  # the text that was read does not stand there
    assert asked(other).num_rows == 0


def test_a_row_with_a_gold_of_its_own_is_no_answer_to_its_problem_and_no_help() -> None:
    messages = [{"role": "user", "content": "What does it print?"}]
    names = ["a", "b", "c"]
    scores = pa.table({"rollout_id": names, "problem_id": ["p"] * 3, "correct": [True, False, False]})
    rollouts = pa.table({"rollout_id": names, "messages": [None, messages, messages], "own_gold": [None, "1", None]})
    found = measured(scores, rollouts)
    assert (found.n.tolist(), found.k.tolist()) == ([1], [1])
    assert found.help.metrics["data/helped_accuracy"] == 0.0
    only = measured(scores.slice(0, 2), rollouts.slice(0, 2))
    assert only.help.metrics == {}


def batch(*parts: tuple[float, float | None], weight: float = 0.0) -> BatchRows:
    held = [[("program", one), *([] if other is None else [("code_rules", other)])] for one, other in parts]
    reward = [one + weight * (other or 0.0) for one, other in parts]
    return BatchRows(pa.table({"reward": reward, "components": pa.array(held, pa.map_(pa.string(), pa.float64()))}))


def test_a_reward_behind_a_gate() -> None:
    rows = batch((1.0, 1.0), (1.0, 0.0), (0.5, 1.0), (0.5, 0.5), (0.0, 1.0), (1.0, None))
    found = gated(rows, column="parts.code_rules")
    assert found["reward"].tolist() == pytest.approx([1.0, 0.0, 0.5, 0.0, 0.0, np.nan], nan_ok=True)
    assert found["passed_frac"].tolist() == pytest.approx([1.0, 0.0, 1.0, 0.0, 1.0, np.nan], nan_ok=True)
    loose = gated(rows, column="parts.code_rules", least=0.5, otherwise=-3.0)
    assert loose["reward"].tolist() == pytest.approx([1.0, -3.0, 0.5, 0.5, 0.0, np.nan], nan_ok=True)


def test_a_gate_that_nobody_has_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"no row has a number in parts\.code_rules"):
        gated(batch((1.0, None)), column="parts.code_rules")
