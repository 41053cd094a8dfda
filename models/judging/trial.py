"""A user's reward tried on a few rows, in a judge process that ends with it.

tried(resolve("mine.py:f", {}), rows, limit_s=5.0)     # a verdict for each row, none of those after a time-out
"""

import time
from collections.abc import Sequence
from pathlib import Path

from gradus.models.judging.messages import verdict_of
from gradus.models.judging.pool import START_LIMIT_S, JudgeStartError
from gradus.models.judging.process import Chunk, JudgeProcess
from gradus.models.rewards import RewardSpec
from gradus.models.rewards.base import Row, Verdict


def tried(spec: RewardSpec, rows: Sequence[Row], *, limit_s: float, log: Path | None = None) -> list[Verdict]:
    """Return the verdicts on rows that are judged together; fewer if the judge dies or takes longer than the limit.

    Raise JudgeStartError if the function does not load.
    """
    until = time.monotonic() + START_LIMIT_S
    judge = JudgeProcess(spec, item_timeout_s=limit_s, deadline=until, log=log)
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
