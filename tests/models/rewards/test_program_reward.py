"""The reward `program`: tests in the forms of known data sets, by hand; comparison of outputs and values."""

import json
import shutil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.components.registry import components
from gradus.models.rewards import load, resolve
from gradus.models.rewards.base import Verdict
from gradus.models.rewards.judges.programs.cases import Call, Code, Stdin, cases, same_output, same_value
from gradus.models.rewards.judges.programs.languages import LANGUAGES, language_of
from gradus.models.rewards.judges.programs.program import judge_program
from gradus.models.rewards.marked import marks_of_verdict
from gradus.models.sandbox import Cell, CellLostError
from gradus.models.sandbox.inside.values import decoded, encoded
from tests.sandboxes import needs_sandbox

pytestmark = needs_sandbox

SUMS = {"inputs": ["1 2\n", "3 4\n", "5 5\n", "0 0\n"], "outputs": ["3\n", "7\n", "10\n", "0\n"]}
ADDS = "a, b = map(int, input().split())\nprint(a + b)"
HALF = "a, b = map(int, input().split())\nprint(a + b if a < 4 and b else 3)"


def judged(program: str, tests: Any, fence: str = "python", **settings: Any) -> Verdict:
    row = {
        "completion": f"<think>```python\nprint(0)\n```</think>So:\n```{fence}\n{program}\n```\nDone.",
        "tests": tests,
    }
    return judge_program(row, "", 50_000, **settings)


@pytest.mark.parametrize(
    ("program", "score", "value", "outcome"),
    [
        (ADDS, "all", 1.0, "correct"),
        (ADDS, "share", 1.0, "correct"),
        (HALF, "all", 0.0, "wrong"),
        (HALF, "share", 0.5, "wrong"),
        ("print(3)", "share", 0.25, "wrong"),
        ("print(", "share", 0.0, "wrong"),
        ("", "share", 0.0, "wrong"),
    ],
)
def test_the_share_of_tests_that_pass_or_all_of_them(program: str, score: Any, value: float, outcome: str) -> None:
    found = judged(program, SUMS, score=score)
    assert (found.value, found.outcome) == (value, outcome)


def test_after_the_first_failure_no_test_is_run_unless_the_share_counts() -> None:
    late = {"inputs": ["1", "2", "3"], "outputs": ["0", "2", "3"]}
    printed = [mark.label for mark in marks_of_verdict(judged("print(input())", late)) if mark.name == "test"]
    assert printed == ["1\n"]
    every = [(m.value, m.label) for m in marks_of_verdict(judged("print(input())", late, score="share"))]
    assert every == [(2 / 3, "2 of 3 tests"), (0.0, "1\n"), (1.0, "2\n"), (1.0, "3\n")]


def test_variables_are_marks_beside_those_of_the_tests() -> None:
    tests = {"inputs": ["1", "2"], "outputs": ["2", "3"]}
    code = "n = int(input())\nm = [n, 'x'] if n > 1 else 1 / 0\nprint(n + 1)"
    plain = marks_of_verdict(judged(code, tests, score="share"))
    more = marks_of_verdict(judged(code, tests, score="share", record_variables=True))
    assert [mark for mark in more if mark.name != "variables"] == [*plain]
    held = [(mark.name, mark.label) for mark in more[1:]]
    failed, passed = ("test", "ZeroDivisionError: division by zero"), ("test", "3\n")
    assert held == [failed, ("variables", "{}"), passed, ("variables", '{"n": 2, "m": [2, "x"]}')]
    calls = {"fn_name": "f", "inputs": [[1]], "outputs": [1]}
    found = marks_of_verdict(judged("x = 3\ndef f(n): return n", calls, record_variables=True))
    assert [(mark.name, mark.label) for mark in found[1:]] == [("test", "1"), ("variables", "{}")]


def test_marks_lie_on_the_program_that_was_judged() -> None:
    completion = f"<think>no</think>é ```python\nprint(1)\n```, better:\n```python\n{ADDS}\n```"
    found = judge_program({"completion": completion, "tests": SUMS}, "", 60)
    assert {completion[m.start : m.end] for m in marks_of_verdict(found)} == {f"{ADDS}\n"}
    assert found.extracted == f"{ADDS}\n"


@pytest.mark.parametrize("completion", ["no program", "<think>```python\nprint(1)\n```", "```python\nprint(1)", ""])
def test_a_completion_without_a_program_is_unparsed(completion: str) -> None:
    assert judge_program({"completion": completion, "tests": SUMS}, "", 0).outcome == "unparsed"


@pytest.mark.parametrize(
    ("tests", "function", "expected"),
    [
        (SUMS, "", [Stdin("1 2\n", "3\n"), Stdin("3 4\n", "7\n"), Stdin("5 5\n", "10\n"), Stdin("0 0\n", "0\n")]),
        ({"inputs": [["1", "2"]], "outputs": [["3", "4"]]}, "", [Stdin("1\n2", "3\n4")]),
        (
            {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]},
            "",
            [Call("add", [1, 2], 3, wrapped=True)],
        ),
        ([{"input": "1\n2", "output": "3", "testtype": "stdin"}], "", [Stdin("1\n2", "3")]),
        ([{"input": '"a"\n[1]', "output": "true", "testtype": "functional"}], "f", [Call("f", ["a", [1]], True)]),
        ([{"args": [1], "returns": None, "function": "g"}], "f", [Call("g", [1], None)]),
        ([{"stdin": 3, "stdout": 4}], "", [Stdin("3", "4")]),
        (["assert f(1) == 2"], "", [Code("assert f(1) == 2")]),
        ("def check(candidate):\n    pass", "f", [Code("def check(candidate):\n    pass\ncheck(f)\n")]),
    ],
)
def test_forms_of_tests(tests: Any, function: str, expected: list[Any]) -> None:
    assert cases(tests, function) == expected


@pytest.mark.parametrize(
    ("tests", "fault"),
    [
        (None, "tests are a list"),
        ([], "tests are a list"),
        (3, "tests are a list"),
        ({"inputs": ["1"]}, "two lists of one length"),
        ({"inputs": ["1"], "outputs": []}, "two lists of one length"),
        ({"inputs": [], "outputs": []}, "two lists of one length"),
        ({"fn_name": "f", "inputs": ["1"], "outputs": ["1"]}, "arguments of a call are a list"),
        ([3], "a table or a Python statement"),
        ([""], "a table or a Python statement"),
        ([{"input": "1"}], "input and output"),
        ([{"args": [1], "returns": 1}], "fn_name"),
        ([{"args": [1], "returns": 1, "function": "a b"}], "fn_name"),
        ([{"input": "x y", "output": "1", "testtype": "functional", "fn_name": "f"}], "JSON in every line"),
        ("def check(candidate): pass", "entry_point"),
    ],
)
def test_tests_that_cannot_be_run_are_an_error_and_no_verdict(tests: Any, fault: str) -> None:
    found = judged(ADDS, tests)
    assert (found.value, found.outcome) == (None, "error")
    assert fault in found.error


def test_tests_stand_in_a_column_in_extra_or_in_the_answer() -> None:
    row = {"completion": f"```python\n{ADDS}\n```"}
    for more, gold in (({"tests": SUMS}, ""), ({"extra": json.dumps({"tests": SUMS})}, ""), ({}, json.dumps(SUMS))):
        assert judge_program({**row, **more}, gold, 0).value == 1.0


def test_calls_and_statements() -> None:
    code = "class Solution:\n    def add(self, a, b):\n        return a + b"
    assert judged(code, {"fn_name": "add", "inputs": [[1, 2], ["a", "b"]], "outputs": [3, ["ab"]]}).value == 1.0
    plain = "def add(a, b):\n    return a + b"
    mixed = ["assert add(1, 2) == 3", "assert add(1, 2) == 4", {"args": [1, 1], "returns": 2, "function": "add"}]
    assert judged(plain, mixed, score="share").value == pytest.approx(2 / 3)
    entry = {
        "completion": f"```py\n{plain}\n```",
        "entry_point": "add",
        "tests": "def check(c):\n    assert c(1, 2) == 3",
    }
    assert judge_program(entry, "", 0).value == 1.0


def test_limits_fail_a_test_and_not_the_row() -> None:
    slow = "import time\nif input() == '1': time.sleep(60)\nprint(1)"
    tests = {"inputs": ["1", "2", "3"], "outputs": ["1", "1", "1"]}
    assert judged(slow, tests, score="share", test_s=0.3).value == pytest.approx(2 / 3)
    asleep = "import time\ntime.sleep(60)"
    found = judged(asleep, tests, score="share", test_s=0.3, total_s=0.5)
    assert (found.value, found.outcome) == (0.0, "wrong")
    assert [m.label for m in marks_of_verdict(found)][1:] == ["ended by its limit of time"] * 2
    assert judged("x = bytearray(1 << 28)\nprint(1)", tests).value == 1.0
    assert judged("x = bytearray(1 << 28)\nprint(1)", tests, memory_mib=64).value == 0.0
    threads = (
        "import threading, time\nfor _ in range(20): threading.Thread(target=time.sleep, args=(0.2,)).start()\nprint(1)"
    )
    assert judged(threads, tests, num_processes=64).value == 1.0
    assert judged(threads, tests, num_processes=4).value == 0.0


def test_a_cell_that_dies_once_changes_nothing_and_one_that_dies_twice_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = [True, False]
    answer = Cell.answer

    def sometimes(cell: Cell, until: float) -> dict[str, Any]:
        if lost and lost.pop(0):
            raise CellLostError("the cell of the program does not answer")
        return answer(cell, until)

    monkeypatch.setattr(Cell, "answer", sometimes)
    assert judged(ADDS, SUMS).value == 1.0
    lost[:] = [True, True]
    found = judged(ADDS, SUMS)
    assert (found.value, found.outcome, found.error) == (None, "error", "the cell of the program does not answer")


SUMS_IN = {
    "python": ADDS,
    "c": '#include <stdio.h>\nint main(){int a,b;scanf("%d %d",&a,&b);printf("%d\\n",a+b);}',
    "cpp": "#include <iostream>\nint main(){int a,b;std::cin>>a>>b;std::cout<<a+b;}",
    "javascript": 'const [a, b] = require("fs").readFileSync(0, "utf8").split(" ").map(Number);\nconsole.log(a + b)',
    "bash": "read a b; echo $((a + b))",
    "perl": "my ($a, $b) = split ' ', <STDIN>; print $a + $b",
    "ruby": "puts gets.split.map(&:to_i).sum",
}


@pytest.mark.parametrize("name", LANGUAGES)
def test_every_language_adds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = LANGUAGES[name]
    if missing := spoken.missing():
        found = judged(SUMS_IN[name], SUMS, fence=name)
        assert (found.outcome, missing in found.error) == ("error", True)
        pytest.skip(f"there is no {missing}")
    for fence in (name, *spoken.names):
        assert judged(SUMS_IN[name], SUMS, fence=fence, test_s=60, total_s=240).value == 1.0
    assert judged(SUMS_IN[name].replace("+", "-").replace("sum", "min"), SUMS, fence="", language=name).value == 0.0
    if spoken.command:
        found = judged(SUMS_IN[name], ["assert f(1) == 2"], fence=name)
        assert "only Python programs are called" in found.error
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert bool(spoken.missing()) is bool(spoken.build or "/" not in "".join(spoken.command[:1] or "/"))


def test_a_program_that_does_not_compile_fails_with_its_error() -> None:
    if LANGUAGES["c"].missing():
        pytest.skip("there is no gcc")
    found = judged("int main(){ return x; }", SUMS, fence="c")
    assert found.outcome == "wrong"
    assert "error: " in str(marks_of_verdict(found)[1].label)


def test_the_language_of_the_problem_comes_before_that_of_the_fence() -> None:
    row = {"completion": "```python\necho 3\n```", "tests": {"inputs": [""], "outputs": ["3"]}, "language": "sh"}
    assert judge_program(row, "", 0).value == 1.0
    assert language_of("Brainfuck") is None
    assert judged("print(3)", {"inputs": [""], "outputs": ["3"]}, fence="text").value == 1.0


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("3\n", "3", True),
        ("  3  \n\n", "3\n", True),
        ("1 2\n3", "1  2 \n3\n", True),
        ("1 2 3", "1 2\n3", False),
        ("3.0000001", "3.0", True),
        ("3.1", "3.0", False),
        ("3.0", "3", False),
        ("1e-9", "0.0", True),
        ("nan", "0.5", False),
        ("abc.d", "abc.d", True),
        ("abc.e", "abc.d", False),
        ("", "3", False),
        ("3\n3", "3", False),
    ],
)
def test_outputs_agree_by_words_and_numbers(found: str, wanted: str, same: bool) -> None:
    assert same_output(found, wanted, 1e-6) is same


@pytest.mark.parametrize(
    ("value", "wanted", "same"),
    [
        ((1, 2), [1, 2], True),
        ([1, [2, (3,)]], [1, [2, [3]]], True),
        ({1: "a"}, {"1": "a"}, True),
        (0.1 + 0.2, 0.3, True),
        (1, 1.0, True),
        (True, 1, False),
        (1, True, False),
        (None, None, True),
        ("1", 1, False),
        ({1, 2}, [1, 2], False),
        ([1, 2], [2, 1], False),
        (3, [3], True),
        (10**400, 10**400, True),
        (10**400, 1.5, False),
    ],
)
def test_values_agree_with_json(value: Any, wanted: Any, same: bool) -> None:
    assert same_value(encoded(value), Call("f", [], wanted, wrapped=True), 1e-6) is same


@pytest.mark.parametrize("forged", [{"float": "x"}, {"nothing": 1}, {}, {"a": 1, "b": 2}, {"dict": 3}, {"set": [[1]]}])
def test_what_no_value_was_made_into_is_no_value(forged: Any) -> None:
    assert not same_value(forged, Call("f", [], None), 1e-6)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
KEYS = st.integers() | st.text()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner) | st.sets(KEYS),
    max_leaves=20,
)


@given(VALUES)
def test_values_come_back_as_they_went(value: Any) -> None:
    crossed = decoded(json.loads(json.dumps(encoded(value))))
    assert crossed == value
    assert type(crossed) is type(value)


@pytest.mark.parametrize("value", [object(), print, iter([1]), [object()], {1: object()}])
def test_an_object_with_code_of_its_own_does_not_cross(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be compared"):
        encoded(value)


def test_a_value_nested_too_deep_does_not_cross() -> None:
    deep: Any = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(TypeError, match="deeper"):
        encoded(deep)


def test_it_decides_though_it_needs_no_gold() -> None:
    spec = resolve("program", {})
    assert (spec.judges_correctness, spec.needs_gold, spec.sandbox) == (True, False, True)


def test_every_registered_reward_loads_and_has_a_version() -> None:
    for name in components("reward"):
        assert callable(load(resolve(name, {})))
    assert resolve("math", {}).verifier == "math@1+math-verify-0.9.0"
    assert resolve("numeric", {}).verifier == "numeric@1"
    assert resolve("a/b.py:f", {}, sha256="ab" * 32).verifier == "b.py:f@abababababab"
