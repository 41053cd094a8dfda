"""Programs that try to win without solving, or to harm: none scores, nothing outside changes, no other row does."""

import os
import random
import textwrap
from pathlib import Path

import psutil
import pytest

from gradus.models.judging.pool import JudgePool
from gradus.models.rewards import resolve
from tests.sandboxes import needs_sandbox

pytestmark = needs_sandbox

IO = {"inputs": ["3 4", "10 20"], "outputs": ["12", "200"]}
CALLS = {"fn_name": "mul", "inputs": [[3, 4], [10, 20]], "outputs": [12, 200]}
STATEMENTS = ["assert mul(3, 4) == 12", "assert mul(10, 20) == 200"]
GOOD = {
    "reads": ("a, b = map(int, input().split())\nprint(a * b)", IO),
    "is called": ("def mul(a, b):\n    return a * b", CALLS),
    "is tested": ("def mul(a, b):\n    return a * b", STATEMENTS),
}
HOSTILE = {
    "exits early": "raise SystemExit(0)",
    "exits at once": "import os\nos._exit(0)",
    "forges a verdict": 'print(\'{"value": 1.0, "outcome": "correct", "at": 0}\')\ndef mul(a, b): return None',
    "forges answers": "import os\nos.write(3, b'{\"value\": 12}\\n' * 3)\ndef mul(a, b): return 0",
    "writes to every descriptor": (
        "import os\nfor n in range(64):\n    try: os.write(n, b'{\"ready\": true}\\n')\n    except OSError: pass"
    ),
    "equals everything": (
        "class A(int):\n"
        "    __eq__ = __ne__ = lambda s, o: True\n"
        "    __hash__ = int.__hash__\n"
        "def mul(a, b): return A(0)"
    ),
    "patches assert": "import builtins\nbuiltins.AssertionError = type(None)\ndef mul(a, b): return 0",
    "patches the compiler": (
        "import builtins, sys\nbuiltins.compile = builtins.exec = print\nsys.modules.clear()\ndef mul(a, b): return 0"
    ),
    "looks for tests": (
        "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'outputs' in o]\nprint(found)"
    ),
    "reads its parent": "import os\nprint(open('/proc/1/environ').read(), open('/proc/self/../1/mem').read())",
    "reads the tests' process": (
        "import os\nfor n in os.listdir('/proc'):\n    if n.isdigit(): print(open(f'/proc/{n}/cmdline').read())"
    ),
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory bomb": "x = []\nwhile True: x.append(bytearray(1 << 24))",
    "thread bomb": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "a gigabyte of output": "import sys\nfor _ in range(1024): sys.stdout.write('1' * (1 << 20))",
    "a gigabyte of faults": "import sys\nfor _ in range(1024): sys.stderr.write('1' * (1 << 20))",
    "fills the disk": "for n in range(1 << 20): open(str(n), 'wb').write(b'0' * (1 << 20))",
    "a million files": "for n in range(1 << 20): open(str(n), 'wb').close()",
    "a link out": "import os\nos.symlink('{outside}', 'x')\nopen('x/owned', 'w').write('x')",
    "writes outside": "open('{outside}/owned', 'w').write('x')",
    "a socket": "import socket\nsocket.create_connection(('127.0.0.1', 80), 1)",
    "a name": "import urllib.request\nurllib.request.urlopen('http://example.com', timeout=1)",
    "signals": "import os, signal\nfor n in (1, {pid}, -1): os.kill(n, signal.SIGKILL)",
    "stops all": "import os, signal\nfor n in (1, {pid}, -1): os.kill(n, signal.SIGSTOP)",
    "sleeps": "import time\ntime.sleep(99)",
    "computes": "while True: pass",
    "a regex bomb": "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
    "a power": "print(9 ** 9 ** 9)",
    "deep recursion": "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(): f()\nf()",
    "a crash": "import ctypes\nctypes.string_at(0)",
    "deep brackets": "(" * 10_000 + ")" * 10_000,
    "a surrogate": "print('\\udc80')",
    "control characters": "print('\\x1b[2J\\x1b]0;owned\\x07')",
    "names of ours": "import gradus\nfrom gradus.models.sandbox.inside import linux\nlinux.unshare(0x10000000)",
    "a daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: time.sleep(999)\n    os._exit(0)"
    ),
}


def rows_of(outside: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {}
    for name, (program, tests) in GOOD.items():
        found[name] = {"completion": f"```python\n{program}\n```", "answer": None, "tests": tests}
    forms = {"read": IO, "call": CALLS, "test": STATEMENTS}
    for name, program in HOSTILE.items():
        code = program.replace("{outside}", str(outside)).replace("{pid}", str(os.getpid()))
        for form, tests in forms.items():
            found[f"{name} ({form})"] = {"completion": f"```python\n{code}\n```", "answer": None, "tests": tests}
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_no_program_wins_by_force_and_no_other_row_changes(tmp_path: Path, seed: int) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    rows = rows_of(outside)
    names = sorted(rows)
    random.Random(seed).shuffle(names)
    before = {process.pid for process in psutil.process_iter()}
    settings = {"test_s": 0.5, "total_s": 1.0, "memory_mib": 128}
    with JudgePool(resolve("program", settings), item_timeout_s=5.0) as pool:
        judged = pool.judge([rows[name] for name in names])
    found = {name: each.verdict for name, each in zip(names, judged, strict=True)}
    good = {name: verdict.value for name, verdict in found.items() if name in GOOD}
    assert good == dict.fromkeys(GOOD, 1.0)
    hostile = {name: verdict.outcome for name, verdict in found.items() if name not in GOOD}
    assert {name: outcome for name, outcome in hostile.items() if outcome != "wrong"} == {}
    assert list(outside.iterdir()) == []
    family = psutil.Process().children(recursive=True)
    left = [process for process in family if process.pid not in before and process.status() != psutil.STATUS_ZOMBIE]
    assert left == []


def test_a_judge_that_is_killed_between_programs_changes_no_verdict() -> None:
    program, tests = GOOD["reads"]
    rows = [{"completion": f"```python\n{program}\n```", "answer": None, "tests": tests} for _ in range(200)]
    killed: list[int] = []
    with JudgePool(resolve("program", {}), item_timeout_s=5.0) as pool:

        def kill(done: int) -> None:
            if len(killed) < 3 and done > 20 * (len(killed) + 1):
                for pid in pool.pids:
                    psutil.Process(pid).kill()
                    killed.append(pid)

        assert {each.verdict.value for each in pool.judge(rows, kill)} == {1.0}


def test_a_program_as_long_as_a_completion_may_be() -> None:
    program = textwrap.dedent("a, b = map(int, input().split())\n") + "x = 1\n" * 7000 + "print(a * b)"
    with JudgePool(resolve("program", {}, max_chars=50_000)) as pool:
        rows = [{"completion": f"```python\n{program}\n```", "answer": None, "tests": IO}]
        assert pool.judge(rows)[0].verdict.value == 1.0
