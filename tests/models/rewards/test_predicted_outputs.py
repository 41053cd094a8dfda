"""The rewards `predicted` and `code_rules`, by hand."""

import json
import time
from typing import Any

import pytest

from gradus.components.description import DescriptionError
from gradus.components.registry import find
from gradus.models.rewards import load, resolve
from gradus.models.rewards.judges.programs.predicted import judge_predicted
from gradus.models.rewards.judges.programs.rules import code_alone, judge_code_rules

GOLD = {"final_output": "1 2\n3\n"}
WITH = {"final_output": "7\n", "variables": {"x": 1, "names": ["a", "b"]}}


def value(completion: str, gold: Any, **settings: Any) -> tuple[float | None, str]:
    found = judge_predicted({"completion": completion, "own_gold": json.dumps(gold)}, "", 50_000, **settings)
    return found.value, found.outcome


@pytest.mark.parametrize(
    ("last", "gold", "expected"),
    [
        ('{"final_output": "1 2\\n3"}', GOLD, (1.0, "correct")),
        ('{"final_output": " 1  2 \\n3\\n"}', GOLD, (1.0, "correct")),
        ('{"final_output": "1 2 3"}', GOLD, (0.1, "wrong")),
        ('{"final_output": null}', GOLD, (0.1, "wrong")),
        ('{"final_output": 7}', {"final_output": "7\n"}, (1.0, "correct")),
        ('{"final_output": [1, 2]}', {"final_output": "[1, 2]\n"}, (1.0, "correct")),
        ('{"final_output": "0.50"}', {"final_output": "0.5\n"}, (1.0, "correct")),
        ('{"final_output": "0.500001"}', {"final_output": "0.5\n"}, (0.1, "wrong")),
        ('{"output": "1 2\\n3"}', GOLD, (0.0, "unparsed")),
        ('["final_output"]', GOLD, (0.0, "unparsed")),
        ("1 2", GOLD, (0.0, "unparsed")),
        ("", GOLD, (0.0, "unparsed")),
        ('{"final_output": "7", "variables": {"x": 1, "names": ["a", "b"]}}', WITH, (1.0, "correct")),
        ('{"final_output": "7", "variables": {"x": 1, "names": ["b"]}}', WITH, (0.1 + 0.9 * 2 / 3, "wrong")),
        ('{"final_output": "8", "variables": {"x": 2}}', WITH, (0.1, "wrong")),
        ('{"final_output": "7", "variables": {}}', WITH, (0.1 + 0.9 / 3, "wrong")),
        ('{"final_output": "7"}', WITH, (0.0, "unparsed")),
        ('{"final_output": "7", "variables": [1]}', WITH, (0.0, "unparsed")),
    ],
)
def test_a_tenth_for_the_form_and_the_rest_by_the_items(last: str, gold: Any, expected: tuple[float, str]) -> None:
    found = value(f"It adds.\n{last}\n", gold)
    assert found == (pytest.approx(expected[0]), expected[1])


def test_the_last_line_behind_the_thinking_counts() -> None:
    right, wrong = json.dumps(GOLD), '{"final_output": "0"}'
    assert value(f"<think>{right}</think>{wrong}", GOLD) == (pytest.approx(0.1), "wrong")
    assert value(f"{wrong}\n{right}", GOLD) == (1.0, "correct")
    assert value(f"{right}\nThat is it.", GOLD) == (0.0, "unparsed")
    assert value(f"<think>{right}", GOLD) == (0.0, "unparsed")


def test_the_keys_are_settings() -> None:
    assert value('{"final_output": 7, "held": {"x": 1}}', WITH, variables_key="held") == (pytest.approx(0.7), "wrong")
    assert value('{"out": "1 2\\n3"}', GOLD, key="out") == (1.0, "correct")
    assert value(json.dumps(GOLD), GOLD, key="out") == (0.0, "unparsed")


def test_the_answer_is_the_gold_of_a_row_without_its_own() -> None:
    row = {"completion": '{"final_output": "5"}'}
    assert judge_predicted(row, '{"final_output": "5\\n"}', 0).value == 1.0
    assert judge_predicted({**row, "own_gold": '{"final_output": "6"}'}, '{"final_output": "5"}', 0).value == 0.1
    for gold in ("", "5", '{"output": "5"}', "[" * 10_000):
        assert judge_predicted(row, gold, 0).outcome == "error"


@pytest.mark.parametrize(
    "piece", ["[", '{"final_output":', "9", '"', "\\u00", "\ud800", "\x00", "1e", "\n", '{"final_output": 1e999}\n']
)
def test_hostile_predictions_are_no_error_and_take_linear_time(piece: str) -> None:
    begun = time.process_time()
    for last in (piece * (50_000 // len(piece)), f'{{"final_output": {piece * 10_000}}}'):
        assert value(last, GOLD)[0] in (0.0, 0.1)
    assert time.process_time() - begun < 2


KERNEL = """
import torch
import triton
import triton . language as tl  # not torch.matmul

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    '''torch.matmul is slower.'''
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl . store(out + at, tl.load(x + at) + tl.load(y + at), mask=at < n)
"""
NEEDS = (r"@triton\.jit", r"\btl\.store\(")
FORBIDS = (r"\btorch\.(matmul|softmax)\b",)


def ruled(program: str, **settings: Any) -> float | None:
    rules = {"needs": NEEDS, "forbids": FORBIDS, **settings}
    found = judge_code_rules({"completion": f"So:\n```python\n{program}\n```\nDone."}, "", 50_000, **rules)
    assert found.outcome == ""
    return found.value


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (KERNEL, 1.0),
        (KERNEL.replace("@triton.jit", "# @triton.jit"), 0.0),
        (KERNEL.replace("@triton.jit", "note = '@triton.jit'"), 0.0),
        (KERNEL.replace("@triton.jit", "@ triton . jit"), 1.0),
        (f"{KERNEL}\nz = torch.matmul(x, y)", 0.0),
        (f"{KERNEL}\nz = torch . \\\n  matmul(x, y)", 0.0),
        (f"{KERNEL}\nz = torch.ｍatmul(x, y)", 0.0),
        (f"{KERNEL}\n# add\rz = torch.matmul(x, y)", 0.0),
        (f"{KERNEL}\nz = f'torch.matmul {{torch.add}}'", 1.0),
        (f"{KERNEL}\nz = torch.matmuls(x, y)", 1.0),
        (f"{KERNEL}\nz = (", 0.0),
        ("", 0.0),
    ],
)
def test_the_code_alone_is_searched(program: str, expected: float) -> None:
    assert ruled(program) == expected


def test_each_need_and_no_other_pattern() -> None:
    assert ruled(KERNEL, needs=(*NEEDS, r"^def add\(")) == 1.0
    assert ruled(KERNEL, needs=(*NEEDS, r"^def sub\(")) == 0.0
    assert ruled(KERNEL, forbids=(*FORBIDS, r"\btl\.load\b")) == 0.0
    assert ruled("x = 1", needs=(), forbids=()) == 1.0
    assert ruled("x = = 1", needs=(), forbids=()) == 0.0


@pytest.mark.parametrize("completion", ["no program", "```python\nx = 1", "<think>```python\nx = 1\n```", ""])
def test_without_a_program_the_rules_are_not_met(completion: str) -> None:
    assert judge_code_rules({"completion": completion}, "", 0).value == 0.0


def test_the_last_block_counts() -> None:
    assert judge_code_rules({"completion": "```\na\n```\n```\nb\n```"}, "", 0, needs=("b",)).value == 1.0
    assert judge_code_rules({"completion": "```\nb\n```\n```\na\n```"}, "", 0, needs=("b",)).value == 0.0


def test_code_is_written_in_one_way() -> None:
    assert (
        code_alone("if  x :\n    return_ = not  y # no\n\n    print( 'a' , 1 )")
        == 'if x:\nreturn_=not y\nprint("",1)\n'
    )


def test_a_pattern_that_is_none_is_refused() -> None:
    settings = find("reward", "code_rules").settings
    for name in ("needs", "forbids"):
        with pytest.raises((ValueError, DescriptionError), match="is not a regular expression"):
            settings(**{name: ["("]})
    judge = load(resolve("code_rules", {"needs": ["a"]}))
    assert judge({"completion": "```\na\n```"}, "").value == 1.0


@pytest.mark.parametrize(
    "piece",
    [
        *("'\\", '"', "(", "[", "{", "f'{", "-", "a.", "x=", "\n ", "lambda:", "if x:\n", "\\\n", "'''", "é", "not "),
        *("@", "1e", "#", "\x0c", "\ud800", "(a,", "a if b else ", "~", "f(", "a[", "x:=", "\r#", "a=", "async "),
    ],
)
def test_hostile_programs_are_no_error_and_take_linear_time(piece: str) -> None:
    begun = time.process_time()
    text = piece * (48_000 // len(piece))
    for program in (text, f"{piece * 90}1", f"{piece * 5_000}\n```\n```\n{piece * 5_000}"):
        assert ruled(program) in (0.0, 1.0)
    assert time.process_time() - begun < 3
