"""A Python program in a forked process: run as a script, called function by function, or run as tests of another one.

A test never shares a process with the program that it tests: a name that the tests do not define stands for a function
of the program, and calls of it cross over as values.
"""

import atexit
import builtins
import contextlib
import json
import os
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from gradus.models.sandbox.inside.values import decoded, encoded, last_variables

CHANNEL = 3
"""Descriptor over which values cross, a line of JSON each."""
WORK = "/tmp/work"  # noqa: S108 - a file system in memory, of this cell alone
"""Folder of a program."""
_PATH = "main.py"


def run_mode(mode: str, source: str) -> NoReturn:
    """Run a program in one of the modes `main`, `variables`, `calls` and `tests`, and end this process."""
    for name, number, how in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(number, how, encoding="utf-8", errors="surrogateescape", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.argv[:] = [_PATH]
    sys.path.insert(0, WORK)
    atexit._clear()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - those of the process that this one was forked from
    code = _ended(_MODES[mode], source)
    try:
        # As an interpreter does at its end: wait for threads, then call what was registered.
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _ended(work: Callable[[str], None], source: str) -> int:
    """Return the exit status of some work, as an interpreter does."""
    try:
        work(source)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 255
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException as error:  # noqa: BLE001 - whatever a program raises ends it
        frames = error.__traceback__ and error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next
        traceback.print_exception(error.with_traceback(frames))
        return 1
    return 0


def _main(source: str) -> None:
    exec(compile(source, _PATH, "exec"), _module("__main__").__dict__)  # noqa: S102 - what the sandbox is for


def _variables(source: str) -> None:
    """Run a program as `_main` does, and report its last variables when its threads and exit functions have ended."""
    names = _module("__main__").__dict__
    atexit.register(_report, names)  # called last, as the first that is registered
    exec(compile(source, _PATH, "exec"), names)  # noqa: S102


def _report(names: dict[str, Any]) -> None:
    with contextlib.suppress(Exception):
        os.write(CHANNEL, json.dumps(last_variables(names)).encode() + b"\n")


def _calls(source: str) -> None:
    module = _module("main")
    exec(compile(source, _PATH, "exec"), module.__dict__)  # noqa: S102
    with open(CHANNEL, "r+b", buffering=0, closefd=False) as channel, open(CHANNEL, "rb", closefd=False) as asked:
        channel.writelines(json.dumps(_answer(module, json.loads(line))).encode() + b"\n" for line in asked)


def _answer(module: types.ModuleType, asked: dict[str, Any]) -> dict[str, Any]:
    try:
        function = _function(module, asked["call"])
        return {"value": encoded(function(*decoded(asked["args"]), **decoded(asked.get("kwargs", {"dict": []}))))}
    except Exception as error:  # noqa: BLE001 - whatever a program raises is its answer
        return {"raised": type(error).__name__, "text": str(error)[:500]}


def _function(module: types.ModuleType, name: str) -> Callable[..., Any]:
    """A function of the program, or a method of its class Solution."""
    if name not in module.__dict__ and "Solution" in module.__dict__:
        return getattr(module.__dict__["Solution"](), name)
    if name not in module.__dict__:
        raise NameError(f"the program defines no function {name}")
    return module.__dict__[name]


def _tests(source: str) -> None:
    with open(CHANNEL, "r+b", buffering=0, closefd=False) as channel, open(CHANNEL, "rb", closefd=False) as answers:

        def ask(name: str, *args: Any, **kwargs: Any) -> Any:
            asked = {"call": name, "args": encoded(list(args)), "kwargs": encoded(kwargs)}
            channel.write(json.dumps(asked).encode() + b"\n")
            answer = json.loads(answers.readline())
            if "raised" not in answer:
                return decoded(answer["value"])
            raised = getattr(builtins, answer["raised"], RuntimeError)
            known = isinstance(raised, type) and issubclass(raised, Exception)
            raise (raised if known else RuntimeError)(answer["text"])

        exec(compile(source, "tests.py", "exec"), _Names(ask))  # noqa: S102


class _Names(dict[str, Any]):
    """Names of the tests; one that they do not define is a function of the program."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self._ask = ask

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._ask(name, *args, **kwargs)

        return function


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(__file__=f"{WORK}/{_PATH}", __builtins__=builtins)
    sys.modules[name] = module
    return module


_MODES = {"main": _main, "variables": _variables, "calls": _calls, "tests": _tests}
