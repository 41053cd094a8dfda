"""Backends of the sandbox: how they start, end, start again, and what a machine without one says."""

import contextlib
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from gradus.models.judging.pool import JudgePool
from gradus.models.rewards import resolve
from gradus.models.sandbox import (
    NEEDED,
    CellLostError,
    Program,
    Sandbox,
    SandboxUnavailableError,
    available_backend,
    commands,
    confined,
    launchers,
)
from tests.sandboxes import SMALL, needs_sandbox, only

pytestmark = needs_sandbox


def said(sandbox: Sandbox, code: str) -> str:
    with sandbox.open(Program(textwrap.dedent(code))) as program:
        return program.run(limit_s=5.0).stdout.strip()


def test_a_sandbox_whose_first_process_was_killed_starts_again() -> None:
    with only(launchers.Namespaces) as sandbox:
        assert said(sandbox, "print(1)") == "1"
        assert isinstance(sandbox._launcher, launchers.Namespaces)
        sandbox._launcher._process.kill()
        sandbox._launcher._process.wait()
        lost = 0
        for _ in range(3):  # the one that was ready is lost with it
            try:
                assert said(sandbox, "print(1)") == "1"
            except CellLostError:
                lost += 1
        assert lost <= 1


@pytest.mark.parametrize("backend", launchers.BACKENDS, ids=lambda backend: backend.name)
def test_a_cell_that_was_killed_is_lost_and_no_verdict(backend: type) -> None:
    others = psutil.Process().children()  # such as the resource tracker of multiprocessing
    try:
        made = only(backend)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    with made as sandbox, sandbox.open(Program("import time\ntime.sleep(60)")) as program:
        program.request({"mode": "main", "limit_s": 60})
        time.sleep(0.3)
        for process in set(psutil.Process().children(recursive=True)) - set(others):
            with contextlib.suppress(psutil.NoSuchProcess):  # it died with one killed before it
                process.kill()
        with pytest.raises(CellLostError, match="does not answer"):
            program.answer(time.monotonic() + 10)


def test_cells_end_with_the_process_that_opened_them(tmp_path: Path) -> None:
    code = """
        import os, sys, time
        from gradus.models.sandbox import Program, Sandbox
        sandbox = Sandbox()
        cell = sandbox.open(Program("import time\\ntime.sleep(600)")).__enter__()
        cell.request({"mode": "main", "limit_s": 600})
        print("open", flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        begun, until = parent.stdout.readline(), time.monotonic() + 20
        while len(family := psutil.Process(parent.pid).children(recursive=True)) < 6 and time.monotonic() < until:
            time.sleep(0.05)
        parent.kill()
    assert (begun, len(family)) == (b"open\n", 6)
    assert psutil.wait_procs(family, timeout=10)[1] == []


def test_many_threads_may_have_a_sandbox_each() -> None:
    found: list[str] = []

    def work() -> None:
        with Sandbox(SMALL) as sandbox:
            found.append(said(sandbox, "print(1)"))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["1"] * 3


def test_a_machine_without_a_sandbox_says_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def not_allowed(self: object, *args: object) -> None:
        raise SandboxUnavailableError("user namespaces: unshare: Operation not permitted")

    monkeypatch.setattr(launchers.Namespaces, "__init__", not_allowed)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="not permitted; bubblewrap: bwrap is not installed"):
        Sandbox()
    failing = tmp_path / "bwrap"
    failing.write_text("#!/bin/sh\necho bwrap: No permissions to create new namespace >&2\nexit 1\n")
    failing.chmod(0o755)
    with pytest.raises(SandboxUnavailableError, match="bubblewrap: bwrap: No permissions"):
        Sandbox()
    assert "bubblewrap" in NEEDED


def test_the_backend_of_this_machine_is_the_first_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for backend in launchers.BACKENDS:
        try:
            only(backend).close()
        except SandboxUnavailableError:
            continue
        monkeypatch.setattr(launchers, "BACKENDS", (backend,))
        assert available_backend.__wrapped__() == backend.name
    monkeypatch.setattr(launchers, "BACKENDS", ())
    with pytest.raises(SandboxUnavailableError):
        available_backend.__wrapped__()


def test_an_isolated_reward_on_a_machine_without_a_sandbox_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing() -> str:
        raise SandboxUnavailableError("bubblewrap: bwrap is not installed")

    monkeypatch.setattr(commands, "available_backend", missing)
    (tmp_path / "mine.py").write_text("def f(rows): return [1.0 for _ in rows]")
    with (
        JudgePool(resolve(f"{tmp_path}/mine.py:f", {}, isolated=True)) as pool,
        pytest.raises(SandboxUnavailableError, match="bwrap is not installed"),
    ):
        pool.judge([{"completion": "", "answer": None}])


def test_an_interpreter_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match="/nowhere is no Python interpreter"):
        Sandbox(python="/nowhere")
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nprintf '/usr\\n/usr\\n3\\n8\\n'\n")
    old.chmod(0o755)
    with pytest.raises(SandboxUnavailableError, match=r"is Python 3\.8: 3\.11 or newer"):
        Sandbox(python=str(old))
    old.write_text("#!/bin/sh\nprintf '/tmp/venv\\n/usr\\n3\\n11\\n'\n")
    with pytest.raises(SandboxUnavailableError, match="/tmp/venv is below /tmp"):
        Sandbox(python=str(old))


def test_a_program_imports_the_packages_of_its_interpreter() -> None:
    with Sandbox(python=sys.executable) as sandbox:
        assert said(sandbox, "import numpy\nprint(numpy.arange(3).sum())") == "3"


@pytest.mark.parametrize("backend", [launchers.Namespaces, launchers.Bubblewrap], ids=lambda backend: backend.name)
def test_a_confined_command_sees_the_files_that_it_needs(
    backend: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend is launchers.Bubblewrap and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    monkeypatch.setattr(commands, "available_backend", lambda: backend.name)
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    for path in (shown, hidden):
        path.write_text("34")
    code = f"""
        import os, signal, tempfile
        import gradus.models.judging.judge
        print([os.path.exists(path) for path in ({str(shown)!r}, {str(hidden)!r})], tempfile.gettempdir())
        open("x", "w").write("a")
        print([os.access(path, os.W_OK) for path in ("/", "/dev", "/dev/shm")])
        os.kill(os.getpid(), signal.SIGALRM)
    """
    command = confined([sys.executable, "-c", textwrap.dedent(code)], [str(shown)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[True, False] /scratch\n[False, False, False]\n", done.stderr
    assert done.returncode == 128 + signal.SIGALRM
