"""The reward `program`: a completion's program passes the tests of its problem, run where it can reach nothing."""

import atexit
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le

from gradus.components import component
from gradus.components.marks import MAX_LABEL_CHARS, Mark
from gradus.models.rewards.base import MAX_EXTRACTED_CHARS, Row, Verdict, failed, unparsed
from gradus.models.rewards.judges.programs.cases import Call, Case, Stdin, cases, same_output, same_value
from gradus.models.rewards.judges.programs.languages import LANGUAGES, Language, language_of
from gradus.models.rewards.marked import MarkedVerdict
from gradus.models.rewards.structured import known, last_block
from gradus.models.rewards.text import strip_invisible, visible_text
from gradus.models.sandbox import Cell, CellLostError, Limits, Program, Sandbox, available_backend, run_tests

_MIB = 1024 * 1024
_MARKED_TESTS = 5
"""Tests whose outcome is a mark of its own."""


@dataclass(frozen=True)
class _Outcome:
    passed: bool
    text: str
    """The output or the value; the end of a program that has neither."""
    variables: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _Time:
    test_s: float
    total_s: float


@component(
    "reward",
    name="program",
    paper="arXiv 2511.06307",
    columns=("tests", "language", "fn_name", "entry_point", "extra"),
    decides=True,
    sandbox=True,
)
def judge_program(
    row: Row,
    gold: str,
    max_chars: int,
    *,
    score: Literal["all", "share"] = "all",
    language: str = "python",
    tolerance: Annotated[float, Ge(0.0), Le(1.0)] = 1e-6,
    test_s: Annotated[float, Gt(0.0)] = 2.0,
    total_s: Annotated[float, Gt(0.0)] = 4.0,
    memory_mib: Annotated[int, Ge(32), Le(65_536)] = 512,
    num_processes: Annotated[int, Ge(1), Le(1024)] = 32,
    python: str = "",
    record_variables: bool = False,
) -> Verdict:
    """1 if the program passes every test, else 0 (DRIVE, CodeRL+); with `share` the share of tests that it passes.

    The program is the last block between fences. `tests` (a column, or in `extra`), or the answer as JSON, is
    {"inputs": [...], "outputs": [...]} for standard input and output, with `fn_name` for calls of a function; a list of
    {"input", "output"}, of {"args", "returns"} or of Python statements (`assert f(1) == 2`); or Python code. A program
    never shares a process with its tests and never sees an expected output. It runs without network and without view of
    your files (gradus.models.sandbox). One that is killed by a limit fails its test. Marks: `program` with the share
    passed (with `all`, of those before the first failure), and for each of the first five tests `test` with 1 or 0 and
    what it printed, then if recorded `variables`. One whose cell dies is run once more, then its row has no verdict.

    Args:
        row: The completion.
        gold: The tests, if the row has none.
        max_chars: Longer completions are judged by their last characters.
        score: 1 for all tests passed, after the first failure no more are run; or the share of them.
        language: Language of a program whose row has no `language` and whose fence names none.
        tolerance: Relative and absolute error of numbers with a point or an exponent.
        test_s: Wall limit of a test.
        total_s: Wall limit of compiling and all tests; those left then have failed. Below score.item_timeout_s.
        memory_mib: Memory of all processes of a program.
        num_processes: Its processes and threads at one time.
        python: Interpreter of Python programs, with its packages; by default Gradus' own, without its environment's.
        record_variables: Mark the last three variables of a Python program's top level with short values, as JSON.
    """
    try:
        tests = cases(known(row, gold, "tests"), str(known(row, "", "fn_name") or known(row, "", "entry_point") or ""))
    except ValueError as error:
        return failed(f"the row has no tests that can be run: {error}")
    found = _found(row, max_chars, language)
    if found is None:
        return unparsed()
    spoken, source, start, end = found
    if fault := _unable(spoken, tests):
        return failed(fault)
    sandbox = _sandbox(Limits(memory_mib * _MIB, num_processes=num_processes), python)
    program = replace(spoken.program(source), variables=record_variables)
    run = functools.partial(_run, sandbox, program, tests, _Time(test_s, total_s), tolerance)
    try:
        outcomes = _again_if_lost(lambda: list(run(every=score == "share")))
    except CellLostError as error:
        return failed(str(error))
    share = sum(each.passed for each in outcomes) / len(tests)
    value = share if score == "share" else float(share == 1.0)
    marks = tuple(_marks(outcomes, len(tests), start, end, variables=record_variables))
    return MarkedVerdict(value, "correct" if share == 1.0 else "wrong", source[:MAX_EXTRACTED_CHARS], marks=marks)


def warm_up() -> None:
    """Raise SandboxUnavailableError before the first row if this machine has no sandbox."""
    available_backend()


@functools.cache
def _sandbox(limits: Limits, python: str) -> Sandbox:
    sandbox = Sandbox(limits, python=python)
    atexit.register(sandbox.close)
    return sandbox


def _marks(outcomes: Sequence[_Outcome], num_tests: int, start: int, end: int, *, variables: bool) -> Iterator[Mark]:
    """Yield the share passed, then the first tests."""
    num_passed = sum(each.passed for each in outcomes)
    yield Mark("program", start, end, num_passed / num_tests, f"{num_passed} of {num_tests} tests")
    for each in outcomes[:_MARKED_TESTS]:
        yield Mark("test", start, end, float(each.passed), each.text[:MAX_LABEL_CHARS])
        if variables:
            yield Mark("variables", start, end, label=json.dumps(each.variables or {}))


def _unable(spoken: Language, tests: Sequence[Case]) -> str:
    """Return the reason that programs of a language cannot be tested here; empty without one."""
    if spoken.command and not all(isinstance(case, Stdin) for case in tests):
        return f"only Python programs are called: {spoken.file} needs tests with input and output"
    missing = spoken.missing()
    return f"this machine has no {missing}, which {spoken.file} needs" if missing else ""


def _again_if_lost(run: Callable[[], list[_Outcome]]) -> list[_Outcome]:
    """Run a program once more if its cell dies, so that a kill from outside changes nothing."""
    try:
        return run()
    except CellLostError:
        return run()


def _found(row: Row, max_chars: int, default: str) -> tuple[Language, str, int, int] | None:
    """Return the language, the program and its place in the completion; None without one."""
    text = visible_text(row["completion"], max_chars)
    block = None if text is None else last_block(text)
    if text is None or block is None:
        return None
    wanted = (str(known(row, "", "language") or ""), block[1], default)
    named = next(filter(None, map(language_of, wanted)), LANGUAGES["python"])
    before = len(row["completion"]) - len(text)
    source = strip_invisible(block[2])
    return named, source, before + block.start(2), before + block.end(2)


def _run(
    sandbox: Sandbox,
    program: Program,
    tests: Sequence[Case],
    limits: _Time,
    tolerance: float,
    *,
    every: bool,
) -> Iterator[_Outcome]:
    """Yield the outcomes of tests until the time is over, or with `every` false until one has failed."""
    until = time.monotonic() + limits.total_s
    with sandbox.open(program) as cell:
        if program.build:
            built = cell.build(until - time.monotonic())
            if not built.ok:
                said = (line for line in built.stderr.splitlines() if "error" in line)
                yield _Outcome(passed=False, text=next(said, built.reason))
                return
        for case in tests:
            left_s = min(limits.test_s, until - time.monotonic())
            if left_s <= 0:
                return
            outcome = _outcome(sandbox, cell, case, left_s, tolerance)
            yield outcome
            if not outcome.passed and not every:
                return


def _outcome(sandbox: Sandbox, cell: Cell, case: Case, limit_s: float, tolerance: float) -> _Outcome:
    if isinstance(case, Stdin):
        ran = cell.run(case.stdin, limit_s=limit_s)
        passed = ran.ok and same_output(ran.stdout, case.stdout, tolerance)
        return _Outcome(passed, ran.stdout if ran.ok else ran.reason, ran.variables)
    if isinstance(case, Call):
        answer = cell.call(case.function, case.args, limit_s=limit_s)
        passed = not answer.error and same_value(answer.value, case, tolerance)
        return _Outcome(passed, answer.error or json.dumps(answer.value))
    with sandbox.open(Program(case.source)) as tests:
        ran = run_tests(cell, tests, limit_s=limit_s)
    return _Outcome(ran.ok, "" if ran.ok else ran.reason)
