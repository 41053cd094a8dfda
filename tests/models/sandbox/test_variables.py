"""Variables that a program reports: those that are short and plain, and nothing else whatever it does."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from gradus.models.sandbox import Program, Sandbox
from gradus.models.sandbox.inside.values import MAX_VARIABLES_CHARS, last_variables
from tests.sandboxes import SMALL, needs_sandbox

pytestmark = needs_sandbox


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SMALL) as made:
        yield made


LATE = "import threading, time\nx = 0\ndef f():\n    global x\n    time.sleep(0.1)\n    x = 5\n"


@pytest.mark.parametrize(
    ("code", "variables"),
    [
        (
            "a = 1\nb = [1, (2, 'ü')]\nc = {'k': None, 3: True}\nd = 2.5",
            {"b": [1, [2, "ü"]], "c": {"k": None, "3": True}, "d": 2.5},
        ),
        (
            "import os, math\nfrom sys import path as _p\n_x = 1\nf = open('x', 'w')\nclass A: pass\ndef g(): y = 2",
            {},
        ),
        ("b = 1\na = 2\nb = int(input())\ndel a", {"b": 7}),
        ("for i in range(3): pass\nexit()", {"i": 2}),
        (f"{LATE}threading.Thread(target=f).start()", {"x": 5}),
        ("import atexit\nx = [1]\natexit.register(x.append, 2)", {"x": [1, 2]}),
        ("x = 'a' * 191\ny = 'a' * 192\nz = 10**999\nu = float('nan')\nv = {(1, 2): 3}\nw = {1, 2}", {"x": "a" * 191}),
        # It lies, or is large, or holds itself.
        ("class A:\n    __class__ = int\n    __repr__ = lambda s: '1'\nx = A()\ny = [A()]\nz = 3", {"z": 3}),
        (
            "class M(type):\n    __eq__ = lambda s, o: True\n    __hash__ = None\nx = M('A', (), {})()\ny = 1",
            {"y": 1},
        ),
        ("class D(dict):\n    def items(self): 1 / 0\nx = D()\ny = {'a': D()}\nz = 1", {"z": 1}),
        ("x = []\nx.append(x)\ny = {}\ny['y'] = y\nz = 1", {"z": 1}),
        ("x = []\nfor _ in range(10**5): x = [x]\nz = 1", {"z": 1}),
        ("x = [0] * 3 * 10**6\ny = [x] * 9\nz = 1", {"z": 1}),
        ("import sys\nsys.set_int_max_str_digits(0)\nx = 1 << 10**7\nz = 1", {"z": 1}),
        ("globals()['a b'] = globals()[3] = 1\nz = 1", {"z": 1}),
        # It reaches for the channel or for what writes to it.
        ("import os\nx = 1\nos.close(3)", {}),
        ("import json\njson.dumps = None\nx = 1", {}),
        ("import os\nx = 1\nos.write(3, b'{\"y\": 2}\\n')", {"x": 1}),
        ('import os\nos.write(3, b\'{"y": 2, "a b": 3, "z": NaN, "u": 1e999}\\n\')\nos.close(3)', {"y": 2}),
        ("import os\nos.write(3, b'[' * 599 + b'\\n')\nos.close(3)", {}),
        ("import os\nos.write(3, b'{\"y\": ' + b'[' * 290 + b']' * 290 + b'}\\n')\nos.close(3)", {}),
        ("import os\nos.write(3, b'[' * 3000000)", {}),
        ("import os\nx = 1\nos._exit(0)", {}),
    ],
)
def test_the_last_three_variables_that_are_short_and_plain(
    sandbox: Sandbox, code: str, variables: dict[str, Any]
) -> None:
    with sandbox.open(Program(code, variables=True)) as program:
        found = program.run("7", limit_s=5.0)
    assert (found.ok, found.variables, [*found.variables]) == (True, variables, [*variables])


def test_a_program_that_fails_or_is_not_asked_reports_none(sandbox: Sandbox) -> None:
    flood = "import json\nx = 1\njson.dumps = lambda *a, **k: 'x' * 10**7"
    for code, wanted in (("x = 1\n1 / 0", True), ("x = 1\nexit(2)", True), (flood, True), ("x = 1", False)):
        with sandbox.open(Program(code, variables=wanted)) as program:
            assert program.run(limit_s=0.5).variables == {}


def test_a_fault_reads_the_same_with_variables(sandbox: Sandbox) -> None:
    said = list[str]()
    for wanted in (False, True):
        with sandbox.open(Program("def f():\n    return 1 / 0\nf()", variables=wanted)) as program:
            said.append(program.run().stderr)
    assert said[0] == said[1] != ""


def test_variables_fit_their_length() -> None:
    longest = {f"v{at}": "é" * 31 for at in range(9)}
    assert [*last_variables(longest)] == ["v6", "v7", "v8"]
    assert len(json.dumps(last_variables(longest))) <= MAX_VARIABLES_CHARS
