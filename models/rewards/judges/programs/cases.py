r"""Tests of a program, in the forms that data sets have them.

cases({"inputs": ["1 2\n"], "outputs": ["3\n"]})                                       # APPS, TACO: standard input
cases({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]})                           # APPS: calls
cases([{"input": "1\n2", "output": "3", "testtype": "functional"}], "add")              # LiveCodeBench
cases(["assert add(1, 2) == 3"])                                                        # MBPP
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradus.models.rewards.structured import is_number
from gradus.models.sandbox.inside.values import decoded

_CHECK = re.compile(r"^def check\(", re.MULTILINE)


@dataclass(frozen=True)
class Stdin:
    """An input and the output that is right for it."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class Call:
    """Arguments of a function and the value that is right for them."""

    function: str
    args: list[Any]
    value: Any
    wrapped: bool = False
    """True if `value` may stand in a list of its own, as in some problems of APPS."""


@dataclass(frozen=True)
class Code:
    """Python code that passes if it raises nothing."""

    source: str


Case = Stdin | Call | Code


def cases(tests: Any, function: str = "") -> list[Case]:
    """Return the tests of a problem; ValueError with what is wrong with them.

    Args:
        tests: As JSON: {inputs, outputs} with or without fn_name; a list of {input, output} with or without testtype,
            of {args, returns}, or of Python statements; or Python code, which may define check(candidate).
        function: Name of the function that calls are for, where the tests have none.
    """
    if isinstance(tests, str):
        return [Code(_with_check(tests, function))]
    if isinstance(tests, dict):
        return _columns(tests, function)
    if not isinstance(tests, list) or not tests:
        raise ValueError("tests are a list, a table of inputs and outputs, or Python code")
    return [_case(each, function) for each in tests]


def _with_check(code: str, function: str) -> str:
    if not _CHECK.search(code):
        return code
    if not function:
        raise ValueError("tests with check(candidate) need the name of a function: entry_point")
    return f"{code}\ncheck({function})\n"


def _columns(tests: Mapping[str, Any], function: str) -> list[Case]:
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise ValueError("tests need inputs and outputs, two lists of one length")
    pairs = list(zip(inputs, outputs, strict=True))
    name = str(tests.get("fn_name") or (function if all(isinstance(each, list) for each in inputs) else ""))
    if not name:
        return [Stdin(_text(given), _text(wanted)) for given, wanted in pairs]
    return [Call(_named(name), _arguments(given), wanted, wrapped=True) for given, wanted in pairs]


def _case(test: Any, function: str) -> Case:
    if isinstance(test, str) and test.strip():
        return Code(_with_check(test, function))
    if not isinstance(test, dict):
        raise ValueError("a test is a table or a Python statement")  # noqa: TRY004 - the data is wrong, not a type
    name = str(test.get("fn_name") or test.get("function") or function)
    if "args" in test and "returns" in test:
        return Call(_named(name), _arguments(test["args"]), test["returns"])
    given = next((test[key] for key in ("input", "stdin") if key in test), None)
    wanted = next((test[key] for key in ("output", "stdout") if key in test), None)
    if given is None or wanted is None:
        raise ValueError("a test has input and output, or args and returns")
    if test.get("testtype") != "functional":
        return Stdin(_text(given), _text(wanted))
    try:
        args = [json.loads(line) for line in str(given).split("\n") if line.strip()]
        return Call(_named(name), args, json.loads(str(wanted)))
    except ValueError as error:
        raise ValueError(f"a functional test has JSON in every line: {error}") from error


def _named(name: str) -> str:
    if not name.isidentifier():
        raise ValueError("a call needs the name of a function: fn_name")
    return name


def _arguments(given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ValueError("the arguments of a call are a list")  # noqa: TRY004 - as above
    return given


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return value if isinstance(value, str) else json.dumps(value)


def same_output(found: str, wanted: str, tolerance: float) -> bool:
    """Return whether two outputs agree line by line, or word by word with numbers within a relative tolerance.

    White space at the ends of lines and of the text does not count, and between words one blank is as good as many. A
    tolerance is for words that the expected output writes with a point or an exponent.
    """
    lines, others = ([line.split() for line in text.strip().splitlines()] for text in (found, wanted))
    if [len(line) for line in lines] != [len(line) for line in others]:
        return False
    pairs = zip((word for line in lines for word in line), (word for line in others for word in line), strict=True)
    return all(word == other or _close(word, other, tolerance) for word, other in pairs)


def _close(word: str, wanted: str, tolerance: float) -> bool:
    if not any(sign in wanted for sign in ".eE"):
        return False
    try:
        found, right = float(word), float(wanted)
    except ValueError:
        return False
    return _near(found, right, tolerance)


def _near(value: float, wanted: float, tolerance: float) -> bool:
    try:
        return math.isclose(value, wanted, rel_tol=tolerance, abs_tol=tolerance)
    except OverflowError:  # a whole number beyond every float
        return False


def same_value(found: Any, case: Call, tolerance: float) -> bool:
    """Return whether a value that crossed from a program is the one that a call asks for."""
    try:
        value = decoded(found)
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    if _same(value, case.value, tolerance):
        return True
    alone = case.wrapped and isinstance(case.value, list) and len(case.value) == 1
    return alone and _same(value, case.value[0], tolerance)


def _same(value: Any, wanted: Any, tolerance: float) -> bool:
    """Compare with JSON: tuples are lists, keys are texts, floats have a tolerance, a bool is no number."""
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if is_number(value) and is_number(wanted):
        return value == wanted or (
            (isinstance(value, float) or isinstance(wanted, float)) and _near(value, wanted, tolerance)
        )
    if isinstance(value, list | tuple) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(_same(a, b, tolerance) for a, b in zip(value, wanted, strict=True))
    if isinstance(value, dict) and isinstance(wanted, dict):
        held = {str(key): each for key, each in value.items()}
        return held.keys() == wanted.keys() and all(_same(held[key], wanted[key], tolerance) for key in wanted)
    return type(value) is type(wanted) and value == wanted
