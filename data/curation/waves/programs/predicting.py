"""A wave that asks what programs print."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Lt

from gradus.components import component
from gradus.components.marks import MAX_LABEL_CHARS
from gradus.components.templates import Template, filled, places
from gradus.data.curation.round import Planned, Round, RoundRows

_PREDICT = (
    "A program:\n```\n{program}\n```\n\nIt is run with this input:\n```\n{input}\n```\n\n"
    'Follow it step by step. End with a line of JSON that states all that it prints: {"final_output": "..."}'
)
_WITH_VARIABLES = _PREDICT.replace(
    ': {"final_output": "..."}',
    ', and the last values of the variables {variables}: {"final_output": "...", "variables": {"name": value}}',
)


@component(
    "wave",
    paper="arXiv 2510.18471",
    needs=("group", "correct", "completion", "extracted", "own_gold", "marks.test", "marks.variables", "problem.extra"),
)
def predict_outputs(
    round: Round,
    rng: np.random.Generator,
    *,
    share: Annotated[float, Gt(0.0), Lt(1.0)] = 0.4,
    template: Annotated[str, Template("program", "input", "variables", needs=("program",))] = "",
) -> Planned | None:
    """Ask the policy what its failed programs print, and train it on the answers beside the problems (CodeRL+).

    CodeRL+ (arXiv 2510.18471): programs of the run's own rollouts that fail, and yet run and print something; one
    question for each pair of input and output, up to a share of the round's groups. The answer is JSON with
    `final_output` and, if the reward `program` records variables, with the values of up to three of them. The reward
    `predicted` compares it with what `program` recorded (`own_gold`). The rows are groups of their own, learned from as
    all are, and count in no difficulty.
    Deviations: questions are about the round's own programs, where the paper draws the newest of a buffer of 20,000;
    variables with short values alone; tests of standard input, one of the first five for each program, and outputs with
    a line end and of less than 1,000 characters, which the reward records whole.

    Args:
        share: Share of the round's groups that are such questions, if there are enough programs.
        template: The prompt with {program} and {input}, and {variables} to ask for those too; empty for one that asks
            for JSON in its last line.
    """
    asked = dict[tuple[str, str], _Printed]()
    for each in _printed(round.rows, rng):
        asked.setdefault((each.given, each.printed), each)
    num_groups = len(np.unique(round.rows["group"]))
    num = int(share / (1 - share) * num_groups + 1e-9)
    questions = list(asked.values())
    chosen = [questions[at] for at in np.sort(rng.permutation(len(questions))[:num])]
    texts = [template or (_WITH_VARIABLES if each.variables else _PREDICT) for each in chosen]
    return round.plan(
        like=np.array([each.row for each in chosen], dtype=np.int64),
        messages=[each.question(text) for each, text in zip(chosen, texts, strict=True)],
        own_gold=[each.gold(text) for each, text in zip(chosen, texts, strict=True)],
        reason="a failed program that ran",
        skipped={"more programs than their share": len(questions) - len(chosen)},
    )


@dataclass(frozen=True)
class _Printed:
    """One test of a failed program that ran."""

    row: int
    program: str
    given: str
    printed: str
    variables: Mapping[str, Any]

    def question(self, template: str) -> str:
        names = ", ".join(self.variables)
        return filled(template, program=self.program, input=self.given, variables=names)

    def gold(self, template: str) -> str:
        asked = bool(self.variables) and "variables" in places(template)
        return json.dumps({"final_output": self.printed} | ({"variables": self.variables} if asked else {}))


def _printed(rows: RoundRows, rng: np.random.Generator) -> list[_Printed]:
    """Return one test, drawn at random, of each failed program that ran."""
    marks, values, found = rows.marks("test"), rows.marks("variables"), list[_Printed]()
    failed = (rows["correct"] == 0) & np.array([each is None for each in rows["own_gold"]], dtype=np.bool_)
    for row in np.flatnonzero(failed).tolist():
        inputs, labels = _inputs(rows["problem.extra"][row]), marks.label[marks.row == row]
        program = _program(rows["completion"][row] or "", rows["extracted"][row] or "")
        ran = zip_longest(labels, values.label[values.row == row])
        of_tests = zip(inputs, ran, strict=False)
        known = [(given, *each) for given, each in of_tests if given is not None and _is_output(each[0])]
        if program and known:
            given, printed, variables = known[int(rng.integers(len(known)))]
            found.append(_Printed(row, program, given, printed, _named(variables)))
    return found


def _named(label: str | None) -> Mapping[str, Any]:
    """Return the variables of a mark; none if it is of another reward than `program`."""
    try:
        held = json.loads(label or "{}")
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}


def _is_output(label: str | None) -> bool:
    """Return whether a label is a whole output: the reason why a program ended is a line without its end."""
    return label is not None and "\n" in label and bool(label.strip()) and len(label) < MAX_LABEL_CHARS


def _program(completion: str, extracted: str) -> str:
    """Return the program that was judged, of which `extracted` is the beginning; empty if it is not found."""
    start = completion.rfind(extracted) if extracted.strip() else -1
    end = completion.find("```", start)
    return completion[start:end].strip("\n") if 0 <= start < end else ""


def _inputs(extra: str | None) -> list[str | None]:
    """Return the standard input of each test of a problem, None for another kind of test."""
    tests = json.loads(extra or "{}").get("tests")
    if isinstance(tests, dict):
        given = [] if tests.get("fn_name") else tests.get("inputs")
    else:
        given = [_stdin(each) for each in tests] if isinstance(tests, list) else []
    return [each if isinstance(each, str) else None for each in given] if isinstance(given, list) else []


def _stdin(test: Any) -> Any:
    """Return the standard input of a test that stands in a list; None for a call or a statement."""
    if not isinstance(test, dict) or test.get("testtype") == "functional" or {"args", "returns"} <= {*test}:
        return None
    return test.get("input", test.get("stdin"))
