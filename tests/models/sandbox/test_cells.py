"""Cells: each test takes one promise of the sandbox and a program that tries to break it, with both backends."""

import os
import shutil
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import gradus
from gradus.models.sandbox import (
    Answered,
    Program,
    Ran,
    Sandbox,
    SandboxUnavailableError,
    launchers,
    run_tests,
)
from tests.sandboxes import SMALL, needs_sandbox, only

pytestmark = needs_sandbox


@pytest.fixture(scope="module", params=[launchers.Namespaces, launchers.Bubblewrap], ids=lambda backend: backend.name)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
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


def test_what_was_registered_for_the_end_is_called_after_the_threads(sandbox: Sandbox) -> None:
    code = """
        import atexit, threading, time
        atexit.register(print, "at the end")
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
    """
    assert ran(sandbox, code).stdout == "thread\nat the end\n"


def test_standard_input_is_a_file_too(sandbox: Sandbox) -> None:
    for path in ("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
        assert ran(sandbox, f"print(open({path!r}).read())", "41").stdout == "41\n", path
    assert ran(sandbox, "open('/dev/stdout', 'w').write('42')").stdout == "42"
    if shutil.which("node"):
        code = "console.log(require('fs').readFileSync('/dev/stdin', 'utf8'))"
        with sandbox.open(Program(code, "main.js", command=("node", "main.js"), reserves=True)) as program:
            assert program.run("41", limit_s=5.0).stdout == "41\n"


def test_a_program_that_filled_the_disk_still_gets_its_next_input(sandbox: Sandbox) -> None:
    code = """
        try:
            while True: open(str(len(__import__("os").listdir("."))), "wb").write(b"x" * (1 << 20))
        except OSError:
            print("full", input())
    """
    with sandbox.open(Program(textwrap.dedent(code))) as program:
        assert [program.run("a").stdout, program.run("b").stdout] == ["full a\n", "full b\n"]


def test_a_compiler_has_memory_of_its_own(sandbox: Sandbox) -> None:
    code = "held = bytearray(200 << 20)\nopen('main', 'w').write('built')"
    command = ("python3", "-c", code)
    if not Path("/usr/bin/python3").exists():
        pytest.skip("there is no python3 under /usr")
    with sandbox.open(Program("", "main.txt", build=command, command=("cat", "main"))) as program:
        assert program.build(10.0).ok
        assert program.run().stdout == "built"


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
    before = len(psutil.Process().children(recursive=True))  # other tests of this process have some, too
    found = ran(sandbox, "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass", limit_s=2.0)
    assert found.ended in {"processes", "memory", "time"}
    assert said(sandbox, "print('alive')") == "alive"
    assert len(psutil.Process().children(recursive=True)) < before + 10


def test_output_is_limited(sandbox: Sandbox) -> None:
    found = ran(sandbox, "import sys\nwhile True: sys.stdout.write('x' * 100_000)")
    assert (found.ended, len(found.stdout)) == ("output", SMALL.output_bytes)
    found = ran(sandbox, "import sys\nsys.stderr.write('y' * 3_000_000)\nprint('done')")
    assert (found.ended, found.stdout, len(found.stderr)) == ("exit", "done\n", 16 * 1024)


def test_the_disk_is_limited_in_bytes_and_files(sandbox: Sandbox) -> None:
    assert "No space left" in ran(sandbox, "for i in range(99): open(f'{i}', 'wb').write(b'x' * (1 << 20))").reason
    assert ran(sandbox, "for i in range(10**9): open(f'{i}', 'w').close()").ended == "files"
    shared = "for i in range(99): open(f'/dev/shm/{i}', 'wb').write(b'x' * (1 << 20))"
    assert "No space left" in ran(sandbox, shared).reason
    assert refusal(sandbox, "open('/dev/x', 'w')") == "OSError"
    assert said(sandbox, "import multiprocessing\nprint(multiprocessing.Lock().acquire())") == "True"


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
