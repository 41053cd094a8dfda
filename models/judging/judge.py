"""A judge: a disposable process that scores completions, one message a batch in, one message a row out.

    python -P -m gradus.models.judging.judge        # started by gradus.models.judging.pool, never by hand

Messages are distinguished by their keys. To the judge: first `spec`, `item_timeout_s` and `memory_bytes`, then batches,
{"rows": [...]}. From it: {"ready": true} once, the verdict on row `at` of the batch (`verdict_of`),
{"one_by_one": true} if a batch raised and its rows follow, each with a time limit of its own, and {"fatal": "..."} if
it cannot start, or cannot continue.
What is covered: the process may hang, crash, exit, print or eat memory, and only the row being judged is lost. Verdicts
travel over a private pipe and carry a random word that only the parent and this loop know; what judged code or a
library prints goes to another pipe, and the parent keeps some of it. The environment was scrubbed by the parent;
address space, core and file size are limited here. An alarm in the kernel's hands ends the process should the parent
be gone.
What is not covered: a user's reward function is code that the user chose to run, with the user's own rights: it can
read files and use the network, and one written to deceive could find the random word in this process's memory.
"""

import contextlib
import importlib
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import fields
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from gradus.components.marks import Mark
from gradus.components.user_modules import Module, UserFileError, describe, executed, named_function, stranger, watch
from gradus.models.processes.parent import Parent
from gradus.models.rewards import RewardSpec, load
from gradus.models.rewards.base import Verdict, best, failed
from gradus.models.rewards.marked import MarkedVerdict, marks_of_verdict
from gradus.models.rewards.user import BatchRefusedError, RewardFunction, judge_batch
from gradus.models.sandbox.inside.linux import limit

GRACE_S = 2.0
"""The kernel ends a judge that overstays its limit by this much, should the parent not have done so."""

BATCH_ITEMS = 10
"""A user's function may take this many times the limit of one row for a whole batch; after that rows go one by one."""

FIRST_BATCH_ROWS = 16
"""Rows of the first call of a user's function."""
MAX_TRACES = 3
"""Rows whose traceback a judge writes to the log of its reward."""

FILE_BYTES = 64 * 1024 * 1024

RowJson = dict[str, object]
Say = Callable[[Mapping[str, Any]], None]


def main() -> None:
    """Serve until the parent closes the pipe."""
    parent = Parent()
    # A judge that is killed has printed what it printed.
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    lines, say = iter(parent), parent.send
    hello = json.loads(next(lines))
    try:
        for kind, most in (("AS", hello["memory_bytes"]), ("CORE", 0), ("FSIZE", FILE_BYTES)):
            limit(kind, most)
        spec = RewardSpec(**hello["spec"])
        if spec.is_user:
            answer = _Batches(_function(spec, say), float(hello["item_timeout_s"])).judge
        else:
            answer = _judging(spec, float(hello["item_timeout_s"]))
    except BaseException as error:
        say({"fatal": str(error) if isinstance(error, UserFileError) else describe(error)})
        raise
    say({"ready": True})
    for line in lines:
        answer(line, say)


def _judged(at: int, seconds: float, verdict: Verdict) -> dict[str, Any]:
    """Return the message of a verdict."""
    return {"at": at, "seconds": seconds, **vars(verdict), "marks": marks_of_verdict(verdict)}


def verdict_of(message: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a message."""
    said = {each.name: message[each.name] for each in fields(Verdict)}
    marks = tuple(Mark(*each) for each in message["marks"])
    return MarkedVerdict(**said, marks=marks) if marks else Verdict(**said)


def _judging(spec: RewardSpec, item_timeout_s: float) -> Callable[[bytes, Say], None]:
    judge_row = load(spec)

    def one(row: RowJson) -> Verdict:
        gold, further = row.get("answer"), cast("list[str]", row.get("golds") or [])
        first = [] if gold is None and further else ["" if gold is None else str(gold)]
        return best(judge_row(row, each) for each in [*first, *further])

    return lambda line, say: _each(json.loads(line)["rows"], one, say, item_timeout_s)


def _function(spec: RewardSpec, say: Say) -> RewardFunction:
    """The function of an installed package, or of a user's file; a module that its spec does not hold ends the job."""
    if not spec.path:
        return partial(getattr(importlib.import_module(spec.module), spec.attribute), **spec.settings)
    path = Path(spec.path)

    def report(module: Module) -> None:
        if spec.sha256 and spec.modules.get(module.name) != module.sha256:
            say({"fatal": stranger(path, module, spec.modules)})

    watch(report)
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(path.parent))
    return partial(named_function(executed(path, spec.sha256), path, spec.function), **spec.settings)


class _Batches:
    """A user's function with the size of the batches that it is called with.

    What a call has found before it raises is lost, and its rows are judged again. So batches begin small and double
    with each call that returns; after one that raised, the rest of its rows and those of the next message are judged
    one by one.
    """

    def __init__(self, function: RewardFunction, item_timeout_s: float) -> None:
        self._function = function
        self._item_timeout_s = item_timeout_s
        self._size = FIRST_BATCH_ROWS
        self._traces_left = MAX_TRACES

    def judge(self, line: bytes, say: Say) -> None:
        """Answer every row of a message; the rows behind a batch that raised are judged one by one."""
        rows: list[RowJson] = json.loads(line)["rows"]
        begin, raised = 0, False
        while not raised and self._size > 1 and len(rows) - begin > 1:
            part = rows[begin : begin + self._size]
            raised = not self._answered(part, begin, say)
            begin += 0 if raised else len(part)
            self._size = 1 if raised else 2 * self._size
        if begin == len(rows):
            return
        if not raised:
            self._size = FIRST_BATCH_ROWS
        say({"one_by_one": True})
        # A function may have changed its batch before it raised: read it again.
        _each(json.loads(line)["rows"][begin:], self._alone, say, self._item_timeout_s, begin)

    def _answered(self, part: list[RowJson], begin: int, say: Say) -> bool:
        """Judge some rows in one call and answer them; return False if it raised."""
        started = time.perf_counter()
        try:
            with _alarm(self._item_timeout_s * min(len(part), BATCH_ITEMS)):
                verdicts = judge_batch(self._function, part)
        except BatchRefusedError as refused:
            verdicts = [failed(str(refused))] * len(part)
        except (Exception, SystemExit):  # noqa: BLE001 - whatever judged code raises is found row by row
            return False
        seconds = (time.perf_counter() - started) / len(part)
        for at, verdict in enumerate(verdicts, begin):
            say(_judged(at, seconds, verdict))
        return True

    def _alone(self, row: RowJson) -> Verdict:
        try:
            return judge_batch(self._function, [row])[0]
        except BatchRefusedError as refused:
            return failed(str(refused))
        except (Exception, SystemExit):
            if self._traces_left:
                self._traces_left -= 1
                print(f"row {row.get('rollout_id')}: {traceback.format_exc()}", file=sys.stderr)  # noqa: T201 - a log
            raise


def _each(
    rows: Iterable[RowJson], judge: Callable[[RowJson], Verdict], say: Say, item_timeout_s: float, begin: int = 0
) -> None:
    for at, row in enumerate(rows, begin):
        started = time.perf_counter()
        with _alarm(item_timeout_s):
            try:
                verdict = judge(row)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever judged code raises is its row's error
                verdict = failed(describe(error))
        say(_judged(at, time.perf_counter() - started, verdict))


@contextlib.contextmanager
def _alarm(limit_s: float) -> Generator[None]:
    """The default action of SIGALRM ends the process without any Python code, even inside a C function."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, limit_s + GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    _home = Path.cwd()
    try:
        main()
    except BrokenPipeError:
        sys.exit(0)
    finally:
        with contextlib.suppress(OSError):  # the parent may have died without closing
            _home.rmdir()
