"""Methods whose rewards run programs: each is laid over the bundled task `programs`."""

import ast
import builtins
import io
import json
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tests.e2e.conftest import Program
from tests.e2e.methods.made import Made, Row, by
from tests.e2e.methods.objectives import Check
from tests.e2e.methods.shaping import ROUNDS
from tests.e2e.methods.step import Step
from tests.e2e.methods.tasks import OnTask, with_extra

LINES = 10_000
"""Lines after which a program is given up."""
SAFE = ("abs", "all", "any", "bool", "enumerate", "float", "int", "len", "list", "max", "min", "print", "range", "str")
MORE = ("reversed", "round", "set", "sorted", "sum", "tuple", "zip", "dict", "map", "ord", "chr")


def block(said: str) -> str | None:
    """The last block between fences."""
    found = re.findall(r"```\w*[ \t]*\n(.*?)```", said, re.DOTALL)
    return found[-1] if found else None


def printed(source: str, given: str, names: Row | None = None) -> str | None:
    """What a program prints, run here with a few functions and its names in `names`; None if it fails."""
    left, lines = [LINES], iter(given.split("\n"))

    def count(_frame: FrameType, _event: str, _arg: object) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise TimeoutError
        return count

    names = {} if names is None else names
    known = {name: getattr(builtins, name) for name in (*SAFE, *MORE)}
    out, before = io.StringIO(), sys.gettrace()
    try:
        code = compile(source, "program", "exec")
        with redirect_stdout(out):
            sys.settrace(count)
            names |= {"__builtins__": {**known, "input": lambda: next(lines)}, "__name__": "__main__"}
            exec(code, names)
    except Exception:  # noqa: BLE001 - whatever the program raises
        return None
    finally:
        sys.settrace(before)
    return out.getvalue()


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def passes(problem: Row, said: str) -> float:
    """1 if the program prints what every test asks for."""
    source, tests = block(said), problem["tests"]
    if source is None:
        return 0.0
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    return float(all((got := printed(source, one)) is not None and words(got) == words(other) for one, other in pairs))


def ruled(problem: Row, said: str) -> float:
    """AutoTriton: 0 unless the syntax tree has a call of input() and no even number; then the tests."""
    try:
        nodes = [*ast.walk(ast.parse(block(said) or "1 1"))]
    except SyntaxError:
        return 0.0
    calls = any(isinstance(n, ast.Call) and ast.unparse(n) == "input()" for n in nodes)
    numbers = [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, int)]
    return passes(problem, said) * (calls and all(n % 2 for n in numbers))


def gates(program: Program, run: str) -> None:
    """Programs that pass their tests are with and without a reward, by the rules."""
    rows = [row for round in ROUNDS for row in Made(program, run).learned(round)]
    assert {row["shaped"] for row in rows if row["reward"] == 1.0} == {0.0, 1.0}


QUESTION = re.compile(r"As JSON: name ida, age (.*)\|(.*), variables (.*)\n", re.DOTALL)


@dataclass(frozen=True)
class Predicting(OnTask):
    """CodeRL+: output and variables of programs that fail and run are asked, in two of five groups at most."""

    def __call__(self, program: Program, run: str) -> None:
        """Raise AssertionError if a question, its gold, a reward or the number of questions differs."""
        made, seen, named = Made(program, run), list[float](), dict[str, set[float]]()
        for round in ROUNDS:
            problems = {row["problem_id"]: with_extra(row) for row in made.given("curate", "problems", round)}
            rows = made.learned(round)
            code, asked = ([row for row in rows if bool(row["wave"]) == later] for later in (False, True))
            assert {row["reward"] for row in code} == {0.0, 1.0}
            assert all(row["reward"] == passes(problems[row["problem_id"]], row["completion"]) for row in code)
            failed = list[tuple[str, dict[str, tuple[str, Row]]]]()
            for row in code:
                source, inputs = block(row["completion"]), problems[row["problem_id"]]["tests"]["inputs"]
                if source is not None and not row["reward"]:
                    outputs = {given: ended(source, given) for given in first_failing(row, inputs)}
                    failed.append((source.strip("\n"), {a: b for a, b in outputs.items() if b[0].strip()}))
            learned = {row["rollout_id"] for row in Step(program, run, round - 1).table}
            groups = by(asked, "group_id")
            questions = {QUESTION.fullmatch(group[0]["messages"][-1]["content"]) for group in groups}
            assert None not in questions
            assert {len(group) for group in groups} == {8}
            assert 0 < len(groups) <= 0.4 / 0.6 * len(by(code, "group_id")) + 1e-9
            for row in asked:
                found = QUESTION.fullmatch(row["messages"][-1]["content"])
                assert found is not None
                known = [outputs[found[2]] for source, outputs in failed if source == found[1] and found[2] in outputs]
                assert known
                assert found[3] == ", ".join(known[0][1])
                assert abs(row["reward"] - predicted(row["completion"], *known[0])) < 1e-6
                assert row["rollout_id"] in learned
                seen.append(row["reward"])
                if found[3]:
                    named.setdefault(row["group_id"], set()).add(row["reward"])
            counted = [made.given("curate", "difficulty", round), made.table("difficulty", round)]
            before, after = (sum(row["alpha"] + row["beta"] for row in table) for table in counted)
            assert after - before == len(code)
        assert {0.0, 0.1} <= {*seen}
        assert max(map(len, named.values())) > 1, "no question about variables is learned from"


def first_failing(row: Row, inputs: list[str]) -> list[str]:
    """The inputs of the tests that were run: after the first failure there are none."""
    return inputs[: sum(mark["name"] == "test" for mark in row["marks"] or ())]


def ended(source: str, given: str) -> tuple[str, Row]:
    """What a program prints, nothing if it fails, and its last three variables."""
    names: Row = {}
    output = printed(source, given, names)
    plain = (int, float, str, list, tuple, dict, type(None))
    held = [each for each in names.items() if each[0][0] != "_" and isinstance(each[1], plain)]
    return output or "", dict([each for each in held if len(json.dumps(dict([each]))) <= 200][-3:])


def once(pairs: list[tuple[str, Any]]) -> Row:
    if len(dict(pairs)) < len(pairs):
        raise ValueError
    return dict(pairs)


def predicted(said: str, output: str, variables: Row) -> float:
    """0.1 for the form and 0.9 for the items, which this policy can call `age` and `pets` alone."""
    try:
        found = json.loads(said.strip().split("\n")[-1], object_pairs_hook=once)
    except ValueError:
        return 0.0
    if not isinstance(found, dict) or "age" not in found or (variables and not isinstance(found.get("pets"), dict)):
        return 0.0
    items = [(found["age"], output), *((found["pets"].get(name), value) for name, value in variables.items())]
    return 0.1 + 0.9 * sum(words(str(one)) == words(str(other)) for one, other in items) / len(items)


PROGRAM_METHODS: Mapping[str, Check] = {
    "autotriton": OnTask(
        "programs",
        ruled,
        (
            (
                'score.rewards=["program", {{name="code_rules", weight=0.0, needs=["input\\\\(\\\\)"], '
                'forbids=["\\\\b[0-9]*[02468]\\\\b"]}}]'
            ),
        ),
        column="shaped",
        more=gates,
    ),
    "coderl_plus": Predicting(
        "programs",
        passes,
        (
            (
                'score.rewards=[{{name="program", record_variables=true}}, '
                '{{name="predicted", key="age", variables_key="pets"}}]'
            ),
            (
                'waves=[{{name="predict_outputs", '
                'template="As JSON: name ida, age {{program}}|{{input}}, variables {{variables}}\\n"}}]'
            ),
        ),
    ),
}
