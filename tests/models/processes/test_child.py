"""Children that behave, and children that write what they like into their pipe."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gradus.models.processes.child import Child
from tests.patience import runs, until

ROOT = Path(__file__).parents[3]
ECHO = """
import json
from gradus.models.processes.parent import Parent
parent = Parent()
for line in parent:
    parent.send({"back": json.loads(line)})
"""
HOSTILE = """
import os, sys, time
nonce = os.read(0, 4096)
os.write(0, WRITTEN)
time.sleep(600)
"""


@contextmanager
def child(source: str, **options: Any) -> Generator[Child]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    nowhere = subprocess.DEVNULL
    made = Child([sys.executable, "-P", "-c", source], env=environment, output=nowhere, errors=nowhere, **options)
    try:
        yield made
    finally:
        made.end()


def heard(made: Child, number: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    until(lambda: bool(found.extend(made.receive()) or len(found) >= number))
    return found


def test_more_than_a_pipe_holds_goes_both_ways_before_either_end_reads() -> None:
    with child(ECHO) as made:
        texts = [f"{number} \ud800 \n" + "x" * 500_000 for number in range(8)]
        for text in texts:
            made.send({"text": text})
        assert made.has_unsent
        found: list[dict[str, Any]] = []
        while len(found) < len(texts) and made.wait(60):
            found += made.receive()
        assert [each["back"]["text"] for each in found] == texts
        assert not made.has_unsent


@pytest.mark.parametrize("written", [b'{"at": 1}\n[1]\nnull\n\xff\n', b'{"nonce": 7}\n', b'{"nonce": "guess"}\n'])
def test_what_does_not_repeat_the_word_is_dropped_and_half_a_message_holds_up_nobody(written: bytes) -> None:
    with child(HOSTILE.replace("WRITTEN", repr(written + b'{"nonce": "half'))) as made:
        assert made.wait(60)
        began = time.monotonic()
        until(lambda: len(made._inbox) > 0 or bool(made.receive()))
        assert made.receive() == []
        assert not made.wait(0.05)
        assert time.monotonic() - began < 30
        assert not made.closed


def test_a_message_without_an_end_counts_as_silence() -> None:
    with child(HOSTILE.replace("WRITTEN", "b'x' * 100_000"), max_bytes=1000) as made:
        until(lambda: made.wait(0.1) and not made.receive() and made.closed)
        assert made.alive


def test_a_child_that_reads_nothing_does_not_hold_up_its_parent() -> None:
    with child("import time; time.sleep(600)") as made:
        began = time.monotonic()
        made.send({"text": "x" * 5_000_000})
        assert not made.wait(0.1)
        assert time.monotonic() - began < 30
        assert made.has_unsent


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)])
def test_a_child_that_ends_says_what_it_had_to_and_how_it_ended(ends: str, code: int) -> None:
    source = f"""
import os, sys
from gradus.models.processes.parent import Parent
Parent().send({{"last": 1}})
{ends}
"""
    with child(source) as made:
        made.send({"text": "x" * 1_000_000})  # never read: the end of the pipe is then a reset one
        assert heard(made, 1) == [{"last": 1}]
        until(lambda: made.wait(0.1) and not made.receive() and made.closed)
        made.send({"text": "to nobody"})
        made.settle(60)
        assert made.end() == code
        assert made.end() == code


def test_a_child_ends_with_the_pipe(tmp_path: Path) -> None:
    source = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "src")!r})
from gradus.models.processes.child import Child
made = Child([sys.executable, "-P", "-c", {ECHO!r}], env=dict(os.environ), output=1, errors=2)
made.send({{}})
made.wait(60)
open({str(tmp_path / "pid")!r}, "w").write(str(made.pid))
os._exit(0)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-P", "-c", source], check=True, env=environment, timeout=120)
    until(lambda: not runs(int((tmp_path / "pid").read_text())), 15)
