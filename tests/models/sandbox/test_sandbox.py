"""The sandbox: each test takes one of its promises and a program that tries to break it, in both ways into it."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

import gradus
from gradus.models.sandbox import (
    NEEDED,
    Answered,
    Limits,
    Program,
    Ran,
    Sandbox,
    SandboxUnavailableError,
    confined,
    launchers,
    run_tests,
)
from tests.sandboxes import needs_sandbox

pytestmark = needs_sandbox
MIB = 1024 * 1024
SMALL = Limits(memory_bytes=128 * MIB, disk_bytes=16 * MIB, output_bytes=64 * 1024, num_processes=16)


def only(way: type) -> Sandbox:
    """A sandbox that has one way in."""
    ways = launchers.WAYS
    launchers.WAYS = (way,)
    try:
        return Sandbox(SMALL)
    finally:
        launchers.WAYS = ways


@pytest.fixture(scope="module", params=[launchers.Namespaces, launchers.Bubblewrap], ids=lambda way: way.name)
def sandbox(request: pytest.FixtureRequest):
    try:
        made = only(request.param)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


def ran(sandbox: Sandbox, code: str, stdin: str = "", limit_s: float = 5.0) -> Ran:
    with sandbox.open(Program(textwrap.dedent(code))) as program:
        return program.run(stdin, limit_s=limit_s)


def said(sandbox: Sandbox, code: str) -> str:
    found = ran(sandbox, code)
    assert found.ok, found
    return found.stdout.strip()


def refusal(sandbox: Sandbox, code: str) -> str:
    """The name of the error that some code raises."""
    wrapped = f"try:\n    {code}\nexcept Exception as error:\n    print(type(error).__name__)\nelse:\n    print('none')"
    return said(sandbox, wrapped)


def test_a_program_reads_its_input_and_prints(sandbox: Sandbox) -> None:
    found = ran(sandbox, "import sys\nprint(int(input()) + 1)\nprint(repr(sys.stdin.read()))", "41\nüx")
    assert (found.ended, found.status, found.stdout) == ("exit", 0, "42\n'üx'\n")
    assert found.reason == "exit status 0"


def test_a_script_is_what_an_interpreter_would_make_of_it(sandbox: Sandbox) -> None:
    code = """
        import sys, atexit, threading, __main__
        if __name__ == "__main__":
            print(sys.argv, __main__.__name__, "print" in dir(__builtins__), open(__file__).read()[:1] == "\\n")
        threading.Thread(target=lambda: print("thread")).start()
        sys.stderr.write("last words")
        exit("bye")
    """
    found = ran(sandbox, code)
    assert found.stdout == "['main.py'] __main__ True True\nthread\n"
    assert found.stderr == "last wordsbye\n"
    assert (found.ended, found.status, found.reason) == ("exit", 1, "last wordsbye")


def test_a_fault_is_named_by_its_own_lines_alone(sandbox: Sandbox) -> None:
    found = ran(sandbox, "def f():\n    return 1 / 0\nf()")
    assert found.reason == "ZeroDivisionError: division by zero"
    assert found.stderr.count("File ") == 2
    assert "gradus" not in found.stderr


def test_runs_of_one_program_do_not_share_variables(sandbox: Sandbox) -> None:
    with sandbox.open(Program("import builtins\nprint(hasattr(builtins, 'seen'))\nbuiltins.seen = 1")) as program:
        assert [program.run().stdout for _ in range(3)] == ["False\n"] * 3


def test_sets_print_alike_in_every_cell(sandbox: Sandbox) -> None:
    printed = {said(sandbox, "print({'a', 'b', 'c', 'd', 'e'}, hash('x'))") for _ in range(3)}
    assert len(printed) == 1


def test_there_is_no_network(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refusal(sandbox, f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)") != "none"
    assert refusal(sandbox, "import socket; socket.socket()") == "PermissionError"
    for family in ("AF_NETLINK", "AF_VSOCK", "AF_ALG", "AF_PACKET"):
        assert refusal(sandbox, f"import socket; socket.socket(socket.{family}, socket.SOCK_RAW)") != "none"
    assert refusal(sandbox, "import socket; socket.socketpair()") == "none"


def test_our_files_are_not_there(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("34")
    listed = [str(secret), str(Path.cwd()), str(Path(gradus.__file__)), "/etc/shadow", "/etc/hosts", "/home", "/sys"]
    assert said(sandbox, f"import os\nprint([path for path in {listed!r} if os.path.exists(path)])") == "[]"
    assert said(sandbox, f"import os\nos.symlink({str(secret)!r}, 'x')\nprint(os.path.exists('x'))") == "False"


def test_the_root_it_left_cannot_be_reached(sandbox: Sandbox) -> None:
    walk = "import os\nfor _ in range(40): os.chdir('..')\nprint(sorted(os.listdir('.')) == sorted(os.listdir('/')))"
    assert said(sandbox, walk) == "True"
    for call in ("os.chroot('/tmp')", "os.listdir('/proc/1/root')", "os.readlink('/proc/1/exe')"):
        assert refusal(sandbox, f"import os; {call}") != "none", call


def test_only_its_own_folder_can_be_written_to(sandbox: Sandbox) -> None:
    for path in ("/usr/x", "/etc/x", "/x", "/bin/x", sys.base_prefix + "/x"):
        assert refusal(sandbox, f"open({path!r}, 'w')") in {"OSError", "PermissionError"}, path
    assert said(sandbox, "open('x', 'w').write('a')\nprint(open('/tmp/work/x').read())") == "a"


def test_what_one_program_wrote_no_other_sees(sandbox: Sandbox) -> None:
    assert said(sandbox, "open('/tmp/left', 'w').write('a')\nopen('left', 'w').write('a')\nprint(1)") == "1"
    assert said(sandbox, "import os\nprint(os.listdir('/tmp'), os.listdir('.'))") == "['work'] ['main.py']"


def test_no_process_of_ours_is_seen(sandbox: Sandbox) -> None:
    found = said(sandbox, "import os\nprint(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()), os.getpid())")
    listed, _, own = found.rpartition(" ")
    assert listed in {f"[1, {own}]", f"[{own}]"}


def test_a_signal_reaches_nobody_else(sandbox: Sandbox) -> None:
    code = f"import os, signal\nfor pid in (1, {os.getpid()}, {os.getppid()}):\n"
    code += "    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM):\n"
    code += "        try: os.kill(pid, number)\n        except OSError: pass\nprint('alive')"
    with sandbox.open(Program(code)) as program:
        assert program.run().stdout == "alive\n"
        assert program.run().stdout == "alive\n"


def test_the_process_that_watches_cannot_be_read_or_written(sandbox: Sandbox) -> None:
    for path in ("/proc/1/mem", "/proc/1/fd/3", "/proc/1/environ", "/proc/1/maps"):
        assert refusal(sandbox, f"open({path!r}, 'rb').read(1)") in {"PermissionError", "FileNotFoundError"}, path
        assert refusal(sandbox, f"open({path!r}, 'wb')") in {"PermissionError", "FileNotFoundError"}, path


@pytest.mark.parametrize(
    ("name", "number"),
    [("ptrace", 101), ("mount", 165), ("unshare", 272), ("bpf", 321), ("memfd_create", 319), ("shmget", 29)]
    if os.uname().machine == "x86_64"
    else [("ptrace", 117), ("mount", 40), ("unshare", 97), ("bpf", 280), ("memfd_create", 279), ("shmget", 194)],
)
def test_calls_into_the_kernel_are_refused(sandbox: Sandbox, name: str, number: int) -> None:
    code = f"import ctypes\nc = ctypes.CDLL(None, use_errno=True)\nprint(c.syscall({number}, 0, 0, 0, 0, 0))"
    assert said(sandbox, code + "\nprint(ctypes.get_errno())") == "-1\n1", name


def test_rights_are_nobodys(sandbox: Sandbox) -> None:
    assert said(sandbox, "import os\nprint(os.getuid(), os.geteuid(), os.getgid())") == "1000 1000 1000"
    status = said(sandbox, "print(open('/proc/self/status').read())")
    lines = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert {lines[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (lines["NoNewPrivs"], lines["Seccomp"]) == ("1", "2")


def test_time_ends_a_program_that_computes_or_sleeps(sandbox: Sandbox) -> None:
    for code in ("while True: pass", "import time\ntime.sleep(60)", "input()\nimport signal\nsignal.pause()"):
        found = ran(sandbox, code, "\n", limit_s=0.3)
        assert (found.ended, found.ok, found.reason) == ("time", False, "ended by its limit of time"), code
        assert 0.3 <= found.seconds < 5


def test_signals_that_a_program_ignores_end_it_all_the_same(sandbox: Sandbox) -> None:
    code = """
        import signal
        for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        print("ready", flush=True)
        while True: pass
    """
    found = ran(sandbox, code, limit_s=0.5)
    assert (found.ended, found.stdout) == ("time", "ready\n")


def test_memory_is_limited_in_one_process(sandbox: Sandbox) -> None:
    found = ran(sandbox, "x = bytearray(1 << 30)")
    assert (found.ended, found.status, found.reason) == ("exit", 1, "MemoryError")


def test_memory_is_limited_over_all_processes(sandbox: Sandbox) -> None:
    code = """
        import os, time
        for _ in range(6):
            if os.fork() == 0:
                x = bytearray(48 << 20)
                time.sleep(30)
        time.sleep(30)
    """
    assert ran(sandbox, code).ended == "memory"


def test_shared_memory_counts(sandbox: Sandbox) -> None:
    code = """
        import mmap, time
        held = [mmap.mmap(-1, 24 << 20) for _ in range(8)]
        for each in held: each.write(b"x" * (24 << 20))
        time.sleep(9)
    """
    assert ran(sandbox, code).ended == "memory"


def test_a_fork_bomb_ends_with_its_cell(sandbox: Sandbox) -> None:
    found = ran(sandbox, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", limit_s=2.0)
    assert found.ended in {"processes", "memory", "time"}
    assert said(sandbox, "print('alive')") == "alive"
    assert len(psutil.Process().children(recursive=True)) < 30


def test_output_is_limited(sandbox: Sandbox) -> None:
    found = ran(sandbox, "import sys\nwhile True: sys.stdout.write('x' * 100_000)")
    assert (found.ended, len(found.stdout)) == ("output", SMALL.output_bytes)
    found = ran(sandbox, "import sys\nsys.stderr.write('y' * 3_000_000)\nprint('done')")
    assert (found.ended, found.stdout, len(found.stderr)) == ("exit", "done\n", 16 * 1024)


def test_the_disk_is_limited_in_bytes_and_files(sandbox: Sandbox) -> None:
    assert "No space left" in ran(sandbox, "for i in range(99): open(f'{i}', 'wb').write(b'x' * (1 << 20))").reason
    assert ran(sandbox, "for i in range(10**9): open(f'{i}', 'w').close()").ended == "files"


def test_nothing_is_left_running(sandbox: Sandbox) -> None:
    code = """
        import os, time
        print(len([name for name in os.listdir("/proc") if name.isdigit()]), flush=True)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
    """
    with sandbox.open(Program(textwrap.dedent(code))) as program:
        started = time.monotonic()
        assert [program.run(limit_s=5.0).stdout for _ in range(3)] == ["2\n"] * 3
        assert time.monotonic() - started < 4


def test_values_cross_by_kind(sandbox: Sandbox) -> None:
    code = "def same(x): return x\ndef kinds(): return (1, 2.5, {3: {'a'}}, [None, True], b'x', 1j, float('inf'))"
    with sandbox.open(Program(code)) as program:
        assert program.call("same", [[1, "ü", {"a": [None]}]]) == Answered([1, "ü", {"dict": [["a", [None]]]}])
        assert program.call("kinds", []).value["tuple"][1:] == [
            {"float": "2.5"},
            {"dict": [[3, {"set": ["a"]}]]},
            [None, True],
            {"bytes": "78"},
            {"complex": ["0.0", "1.0"]},
            {"float": "inf"},
        ]
        assert program.call("nothing", []).error == "NameError: the program defines no function nothing"
        assert program.call("same", []).error.startswith("TypeError")


def test_a_call_that_does_not_return_ends(sandbox: Sandbox) -> None:
    with sandbox.open(Program("def f():\n    while True: pass")) as program:
        assert program.call("f", [], limit_s=0.3).error == "ended by its limit of time"
        assert program.call("f", [], limit_s=0.3).error == "ended by its limit of time"
    with sandbox.open(Program("raise SystemExit(0)")) as program:
        assert program.call("f", []) == Answered(error="exit status 0")


@pytest.mark.parametrize(
    ("code", "tests", "passes"),
    [
        ("def f(x): return x + 1", "assert f(1) == 2", True),
        ("def f(x): return x + 1", "assert f(1) == 3", False),
        ("def f(x): return x + 1", "for i in range(50):\n    assert f(i) == i + 1", True),
        ("def f(x): raise ValueError", "try: f(1)\nexcept ValueError: pass\nelse: assert 0", True),
        ("def f(x): return {x: (x, {x})}", "assert f(1) == {1: (1, {1})}", True),
        ("def f(x): return g(x)\ndef g(x): return x", "def check(c):\n    assert c(1) == 1\ncheck(f)", True),
        ("class A:\n    __eq__ = lambda s, o: True\ndef f(x): return A()", "assert f(1) == 2", False),
        ("class A(int):\n    __eq__ = lambda s, o: True\ndef f(x): return A(3)", "assert f(1) == 2", False),
        ("class A(list):\n    __eq__ = lambda s, o: True\ndef f(x): return A()", "assert f(1) == [2]", False),
        ("import builtins\nbuiltins.AssertionError = OSError\ndef f(x): return 0", "assert f(1) == 2", False),
        ("def f(x):\n    import os\n    os._exit(0)", "assert f(1) == 2", False),
        ("raise SystemExit(0)", "assert f(1) == 2", False),
        ("import os\nos.write(3, b'{\"value\": 2}\\n' * 9)\ndef f(x): return 2", "assert f(1) == 3", False),
        ("import os\nos.write(3, b'garbage\\n[1]\\n{}\\n')", "assert f(1) == 3", False),
        ("import os\nos.close(3)\ndef f(x): return 2", "assert f(1) == 2", False),
        ("def f(x):\n    while True: pass", "assert f(1) == 2", False),
        ("def f(x): return [x] * 10**8", "assert f(1) == 2", False),
        ("def f(x): return 2", "assert missing(1) == 2", False),
    ],
)
def test_tests_and_the_program_share_nothing_but_values(sandbox: Sandbox, code: str, tests: str, passes: bool) -> None:
    with sandbox.open(Program(code)) as program, sandbox.open(Program(tests)) as asked:
        assert run_tests(program, asked, limit_s=2.0).ok is passes
        assert run_tests(program, asked, limit_s=2.0).ok is passes


def test_a_flood_of_lines_ends_with_the_limit(sandbox: Sandbox) -> None:
    flood = 'import os\nwhile True: os.write(3, b\'{"call": "f", "args": []}\\n\' * 1000)'
    with sandbox.open(Program("def f(): return 1")) as program, sandbox.open(Program(flood)) as asked:
        assert not run_tests(program, asked, limit_s=0.5).ok
    with sandbox.open(Program(flood)) as program:
        assert not program.run(limit_s=0.5).ok
    assert said(sandbox, "print(1)") == "1"


def test_bytes_that_are_no_text_come_back_as_text(sandbox: Sandbox) -> None:
    assert said(sandbox, "import sys\nsys.stdout.buffer.write(b'\\xff\\x00a')") == "�\x00a"
    assert ran(sandbox, "print(input())", "\udc80").stdout == "�\n"


def test_a_sandbox_whose_first_process_was_killed_starts_again() -> None:
    with only(launchers.Namespaces) as sandbox:
        assert said(sandbox, "print(1)") == "1"
        assert isinstance(sandbox._launcher, launchers.Namespaces)
        sandbox._launcher._process.kill()
        sandbox._launcher._process.wait()
        found = [ran(sandbox, "print(1)") for _ in range(3)]
        assert found[-1].stdout == "1\n"
        assert {each.ended for each in found} <= {"exit", "lost"}


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


@pytest.mark.parametrize("way", [launchers.Namespaces, launchers.Bubblewrap], ids=lambda way: way.name)
def test_a_confined_command_sees_the_files_that_it_needs(
    way: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way is launchers.Bubblewrap and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    monkeypatch.setattr(launchers, "way_here", lambda: way.name)
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    for path in (shown, hidden):
        path.write_text("34")
    code = f"""
        import os, signal, tempfile
        import gradus.models.judging.judge
        print([os.path.exists(path) for path in ({str(shown)!r}, {str(hidden)!r})], tempfile.gettempdir())
        open("x", "w").write("a")
        os.kill(os.getpid(), signal.SIGALRM)
    """
    command = confined([sys.executable, "-c", textwrap.dedent(code)], [str(shown)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "[True, False] /scratch\n", done.stderr
    assert done.returncode == 128 + signal.SIGALRM
