"""A pool of disposable judge processes for one reward: a wall limit a row, order kept, the dead replaced.

    with JudgePool(resolve("numeric", {})) as pool:
        judged = pool.judge(rows)            # one Judged a row, in the order of the rows

One thread, one select loop: chunks of rows go to the judges (two in flight each, so that none waits), verdicts come
back row by row. The clock of a row starts with the verdict before it and is this process's own. A row that overstays
its limit ends its judge, whole process group and descendants; the row is a time-out, the rest of its chunk goes back
to the head of the queue. A row whose judge died is judged once more, alone in a new judge, so that a kill from outside
changes nothing; the second death makes it an error.
A user's function that hangs on everything is abandoned after a few rows: rows from all over the job are judged alone
before the first batch, and HangingRewardError says how many in a row timed out.
Not covered: a descendant that left the process group and lost its parent; use by several threads at once; Windows.
"""

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Any

from gradus.models.judging.judge import BATCH_ITEMS, verdict_of
from gradus.models.judging.process import Chunk, JudgeProcess
from gradus.models.rewards import RewardSpec
from gradus.models.rewards.base import Row, Verdict, failed

START_LIMIT_S = 120.0
MAX_START_FAILURES = 3
SETTLE_S = 1.0
"""Seconds in which a judge that has closed its pipe exits."""
IN_FLIGHT = 2
CHUNK_ROWS = 64
CHUNK_CHARS = 256 * 1024
USER_BATCH_ROWS = 256
MAX_DEATHS = 2
PROBES = 4
"""Rows that a user's function judges one by one before its first batch; if all of them time out it is abandoned."""
HANGS_IN_A_ROW = 32
"""Consecutive time-outs after which a function that has judged rows is abandoned."""


@dataclass(frozen=True)
class TimedVerdict:
    """A verdict and how long judging took, by the judge's own clock (the limit itself, for a time-out)."""

    verdict: Verdict
    seconds: float


class JudgeStartError(RuntimeError):
    """The judge processes of a reward cannot judge (a user's file that fails to load or was changed, no memory)."""


class HangingRewardError(RuntimeError):
    """Too many rows timed out; `rows` are their indices in the job, `in_a_row` if no verdict came between them."""

    def __init__(self, rows: Sequence[int], *, in_a_row: bool) -> None:
        super().__init__(f"{len(rows)} rows timed out")
        self.rows = tuple(rows)
        self.in_a_row = in_a_row


class FailingRewardError(RuntimeError):
    """Many rows failed one after another; `verdicts` has all rows of the job, errors for those that were not asked."""

    def __init__(self, message: str, verdicts: Sequence[TimedVerdict]) -> None:
        super().__init__(message)
        self.verdicts = verdicts


class JudgePool:
    """Warm judges of one reward; close it, or use it in a with statement. What the reward prints goes to `log`."""

    def __init__(
        self,
        spec: RewardSpec,
        *,
        num_workers: int = 2,
        item_timeout_s: float = 5.0,
        batch_rows: int = USER_BATCH_ROWS,
        log: Path | None = None,
    ) -> None:
        if num_workers < 1 or item_timeout_s <= 0 or batch_rows < 1:
            raise ValueError("num_workers, item_timeout_s and batch_rows must be positive")
        self.spec = spec
        self._num_workers = num_workers
        self.item_timeout_s = item_timeout_s
        self._batch_rows = batch_rows
        self._log = log
        self._judges: list[JudgeProcess] = []
        self._start_failures = 0
        self._proven = False
        self._finalizer = weakref.finalize(self, _end_all, self._judges)

    def __enter__(self) -> "JudgePool":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End all judges and their descendants; a second call does nothing."""
        self._finalizer()

    @property
    def pids(self) -> list[int]:
        """Process ids of the living judges."""
        return [judge.pid for judge in self._judges]

    def judge(
        self,
        rows: Sequence[Row],
        on_progress: Callable[[int], None] | None = None,
        max_timeouts: float = math.inf,
        max_in_a_row: float = math.inf,
    ) -> list[TimedVerdict]:
        """Judge every row; `on_progress` hears the number of finished rows at least once a second.

        Raise JudgeStartError if judges cannot start at all, or if a user's function loaded a module, at any time,
        that is not in the spec with the content loaded. A spec without digests is not checked.
        Raise HangingRewardError as soon as more than `max_timeouts` rows timed out, or PROBES or HANGS_IN_A_ROW of a
        user's function did one after another, and FailingRewardError after `max_in_a_row` errors or time-outs with no
        verdict between them.
        """
        if not self._finalizer.alive:
            raise RuntimeError("the judge pool is closed")
        job = _Job(rows, deque(self._chunks(rows)), max_timeouts, max_in_a_row)
        self._start_failures = 0
        try:
            self._run(job, on_progress or (lambda _: None))
        except BaseException:
            # Half-judged chunks would answer the next job: start afresh.
            _end_all(self._judges)
            raise
        return [job.results[i] for i in range(len(rows))]

    def _chunks(self, rows: Sequence[Row]) -> list[Chunk]:
        unknown = self.spec.is_user and not self._proven and len(rows) > 2 * PROBES
        probes = spread(len(rows), PROBES) if unknown else []
        alone = [Chunk([index], singly=True) for index in probes]
        return [*alone, *self._batches(rows, set(probes))]

    def _batches(self, rows: Sequence[Row], without: set[int]) -> list[Chunk]:
        if self.spec.is_user:
            limit, size = len(rows) * CHUNK_CHARS + 1, self._batch_rows
        else:
            limit, size = CHUNK_CHARS, min(CHUNK_ROWS, -(-len(rows) // (4 * self._num_workers)))
        chunks: list[Chunk] = []
        current: list[int] = []
        chars = 0
        for index, row in enumerate(rows):
            if index in without:
                continue
            if current and (len(current) >= size or chars > limit):
                chunks.append(Chunk(current))
                current, chars = [], 0
            current.append(index)
            chars += len(row["completion"])
        return [*chunks, Chunk(current)] if current else chunks

    def _run(self, job: "_Job", on_progress: Callable[[int], None]) -> None:
        next_beat = 0.0
        while len(job.results) < len(job.rows) and not job.is_failing:
            self._feed(job)
            self._wait(job)
            if time.monotonic() >= next_beat:
                on_progress(len(job.results))
                next_beat = time.monotonic() + 1.0
        on_progress(len(job.results))
        if len(job.results) < len(job.rows):
            last, how = next(reversed(job.results.values())).verdict, f"{job.failed_in_a_row} rows one after another"
            left = TimedVerdict(failed(f"not judged, since {self.spec.name} failed on {how}"), 0.0)
            verdicts = [job.results.get(index, left) for index in range(len(job.rows))]
            raise FailingRewardError(f"the reward {self.spec.name} failed on {how}: {last.error}", verdicts)

    def _feed(self, job: "_Job") -> None:
        while job.queue:
            free = [j for j in self._judges if len(j.in_flight) < IN_FLIGHT]
            idle = [j for j in free if not j.in_flight]
            if not idle and len(self._judges) < self._num_workers:
                until = time.monotonic() + START_LIMIT_S
                self._judges.append(JudgeProcess(self.spec, self.item_timeout_s, until, self._log))
                continue
            judge = min(free, key=lambda j: len(j.in_flight), default=None)
            if judge is None:
                return
            chunk = job.queue.popleft()
            judge.ask(chunk, [job.rows[i] for i in chunk.indices])
            if len(judge.in_flight) == 1:
                self._restart_clock(judge)

    def _wait(self, job: "_Job") -> None:
        deadlines = [j.deadline for j in self._judges if j.deadline is not None]
        # Read before checking deadlines, so that a verdict that arrived while we were busy is not a time-out.
        now = time.monotonic()
        patience_s = min([1.0, *(max(0.0, d - now) for d in deadlines)])
        with DefaultSelector() as selector:
            for judge in self._judges:
                selector.register(judge, EVENT_READ | (EVENT_WRITE if judge.has_unsent else 0), judge)
            ready = selector.select(patience_s)
        readable = [key.data for key, events in ready if events & EVENT_READ]
        for key, events in ready:
            if events & EVENT_WRITE:
                key.data.flush()
        for judge in readable:
            self._receive(job, judge)
        for judge in [j for j in self._judges if j not in readable and j.deadline is not None and now > j.deadline]:
            self._expire(job, judge)

    def _receive(self, job: "_Job", judge: JudgeProcess) -> None:
        for message in judge.receive():
            if not job.is_failing:
                self._take(job, judge, message)
        if judge.closed:
            self._bury(job, judge)

    def _take(self, job: "_Job", judge: JudgeProcess, message: dict[str, Any]) -> None:
        if "fatal" in message:
            raise JudgeStartError(str(message["fatal"]))
        if "ready" in message:
            judge.ready = True
            self._start_failures = 0
        elif "one_by_one" in message and judge.in_flight:
            judge.in_flight[0].singly = True
        elif "at" in message and judge.in_flight and message["at"] == judge.in_flight[0].answered:
            index = judge.advance()
            job.take(index, TimedVerdict(verdict_of(message), message["seconds"]))
            job.timeouts_in_a_row = 0
            self._proven = True
        self._restart_clock(judge)

    def _restart_clock(self, judge: JudgeProcess) -> None:
        """Restart the time limit of the row or batch at the head of the queue, unless its judge still starts."""
        if not judge.ready:
            return
        if not judge.in_flight:
            judge.deadline = None
            return
        head = judge.in_flight[0]
        batched = self.spec.is_user and not head.singly
        items = min(len(head.indices), BATCH_ITEMS) if batched else 1
        judge.deadline = time.monotonic() + self.item_timeout_s * items

    def _expire(self, job: "_Job", judge: JudgeProcess) -> None:
        if not judge.ready:
            raise JudgeStartError(f"a judge of {self.spec.name} was not ready within {START_LIMIT_S:.0f} s")
        head = judge.in_flight[0]
        if len(head.indices) > 1 and self.spec.is_user and not head.singly:
            self._replace(job, judge, judge.in_flight.popleft().split())
            return
        index = judge.advance()
        said = f"not judged within {self.item_timeout_s:g} s"
        job.take(index, TimedVerdict(Verdict(None, "timeout", None, said), self.item_timeout_s))
        self._replace(job, judge)
        job.timed_out.append(index)
        job.timeouts_in_a_row += 1
        in_a_row = self.spec.is_user and job.timeouts_in_a_row >= (HANGS_IN_A_ROW if self._proven else PROBES)
        if in_a_row or len(job.timed_out) > job.max_timeouts:
            raise HangingRewardError(job.timed_out, in_a_row=in_a_row)

    def _bury(self, job: "_Job", judge: JudgeProcess) -> None:
        """A judge that died by itself: the row it was judging is suspect."""
        judge.settle(SETTLE_S)
        code = judge.end()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        if not judge.ready or not judge.in_flight:
            self._start_failures += not judge.ready
            if self._start_failures >= MAX_START_FAILURES:
                raise JudgeStartError(f"the judge of {self.spec.name} ended while starting ({how})")
            self._replace(job, judge)
            return
        head = judge.in_flight[0]
        if len(head.indices) > 1 and self.spec.is_user and not head.singly:
            self._replace(job, judge, judge.in_flight.popleft().split())
            return
        deaths = head.deaths + 1
        index = judge.advance()
        if deaths < MAX_DEATHS:
            self._replace(job, judge, [Chunk([index], deaths=deaths, singly=True)])
        else:
            job.take(index, TimedVerdict(failed(f"the judge process ended ({how})"), 0.0))
            self._replace(job, judge)

    def _replace(self, job: "_Job", judge: JudgeProcess, first: Sequence[Chunk] = ()) -> None:
        """End a judge; its unanswered rows go back to the head of the queue, in order. A new one starts when needed."""
        judge.end()
        self._judges.remove(judge)
        job.queue.extendleft(reversed([*first, *(chunk.rest() for chunk in judge.in_flight)]))


@dataclass
class _Job:
    rows: Sequence[Row]
    queue: deque[Chunk]
    max_timeouts: float
    max_in_a_row: float
    timed_out: list[int] = field(default_factory=list[int])
    timeouts_in_a_row: int = 0
    failed_in_a_row: int = 0
    results: dict[int, TimedVerdict] = field(default_factory=dict[int, TimedVerdict])

    @property
    def is_failing(self) -> bool:
        """Return whether as many rows as are allowed failed one after another."""
        return self.failed_in_a_row >= self.max_in_a_row

    def take(self, index: int, judged: TimedVerdict) -> None:
        """Keep the outcome of a row, and count failures since the last verdict."""
        self.results[index] = judged
        self.failed_in_a_row = self.failed_in_a_row + 1 if judged.verdict.outcome in ("error", "timeout") else 0


def spread(num_rows: int, num_wanted: int) -> list[int]:
    """Indices from all over a table, the first row among them.

    >>> spread(10, 4)
    [0, 2, 5, 7]
    """
    return sorted({at * num_rows // num_wanted for at in range(num_wanted)} if num_rows else ())


def _end_all(judges: list[JudgeProcess]) -> None:
    while judges:
        judges.pop().end()


def tried(spec: RewardSpec, rows: Sequence[Row], *, limit_s: float, log: Path | None = None) -> list[Verdict]:
    """Return the verdicts of a user's reward on a few rows that one judge, which ends then, judges together.

    There are fewer if the judge dies or takes longer than the limit. JudgeStartError if the function does not load.
    """
    until = time.monotonic() + START_LIMIT_S
    judge = JudgeProcess(spec, limit_s, until, log)
    verdicts: list[Verdict] = []
    try:
        judge.ask(Chunk(list(range(len(rows)))), rows)
        while not judge.closed and len(verdicts) < len(rows) and judge.wait(max(0.0, until - time.monotonic())):
            for message in judge.receive():
                if "fatal" in message:
                    raise JudgeStartError(str(message["fatal"]))
                if "ready" in message:
                    until = time.monotonic() + limit_s
                elif "at" in message:
                    verdicts.append(verdict_of(message))
        return verdicts
    finally:
        judge.end()
