"""What is seen while a run works: a bar with round, speed and time left on a terminal, a line a stage in a pipe."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gradus.data.lake.store import Ref
from gradus.flows.console.pace import Pace
from gradus.flows.console.progress_bar import StageView, milestone
from gradus.tasks.runtime.calls import Outcome
from tests.conftest import TESTS_PATH, seen_on_a_terminal

UPDATE = {"metrics": {"trained/reward_mean": 0.5}, "summary": {"tokens_trained": 1234}}


def ended(
    stage: str, report: Mapping[str, Any], index: int = 2, purpose: str = "train", *, reused: bool = False
) -> Outcome:
    return Outcome(stage, purpose, index, Ref("rollouts", "0" * 8), reused=reused, seconds=1.0, report=report)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def update(self, pace: Pace, index: int, seconds: float, *, reused: bool = False) -> None:
        self.now += seconds
        pace.ended(f"update-{index}", "update", index, reused=reused)


def test_the_time_left_is_that_of_the_rounds_computed_times_those_left() -> None:
    clock = Clock()
    pace = Pace(18, clock)
    clock.now += 50
    pace.beat("eval-rollout-0", 0.5, "")
    pace.ended("eval-rollout-0", "rollout", 0, reused=False)
    pace.beat("rollout-1", 0.5, "")
    assert (pace.shown().round, pace.shown().frac, pace.shown().left_s) == (1, 0.0, None)
    pace.ended("rollout-1", "rollout", 1, reused=False)
    clock.update(pace, 1, 8)  # 50 s before the first round are no part of it
    clock.update(pace, 2, 12)
    clock.now += 5
    pace.beat("rollout-3", 0.25, "")
    shown = pace.shown()
    assert shown.round == 3
    assert shown.frac == pytest.approx((2 + 5 / 10) / 18)
    assert shown.left_s == pytest.approx(16 * 10 - 5)
    clock.now += 100
    assert pace.shown().frac == pytest.approx((2 + 0.99) / 18)  # a slow round does not run into the next


def test_rounds_that_were_reused_say_nothing_of_how_long_one_takes() -> None:
    clock = Clock()
    pace = Pace(4, clock)
    clock.update(pace, 1, 0.1, reused=True)
    clock.update(pace, 2, 0.1, reused=True)
    assert (pace.shown().frac, pace.shown().left_s) == (0.5, None)
    clock.update(pace, 3, 20)
    assert pace.shown().left_s == pytest.approx(20)
    clock.update(pace, 4, 20)
    assert (pace.shown().frac, pace.shown().left_s) == (1.0, None)


def test_a_stage_alone_has_its_own_time_left_and_the_speed_of_the_last_seconds() -> None:
    clock = Clock()
    pace = Pace(0, clock)
    pace.beat("rollout-0", 0.01, "5 of 500 rollouts, 0 tokens")
    clock.now += 1
    assert (pace.shown().left_s, pace.shown().tokens_per_s) == (None, None)
    for second in range(1, 31):
        clock.now += 1
        pace.beat("rollout-0", 0.25, f"125 of 500 rollouts, {1000 * second * (1 + (second > 15))} tokens")
    assert pace.shown().tokens_per_s == pytest.approx(2000)
    assert pace.shown().left_s == pytest.approx(31 * 3)
    pace.ended("rollout-0", "rollout", 0, reused=False)
    assert (pace.shown().stages, pace.shown().tokens_per_s) == ((), None)


def bar(view: StageView) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(view.line())
    return console.file.getvalue().rstrip()  # pyright: ignore[reportAttributeAccessIssue]


def test_two_stages_at_once_share_the_line_until_one_ends() -> None:
    clock = Clock()
    with StageView(Console(file=io.StringIO(), force_terminal=True, width=160), rounds=3, clock=clock) as view:
        view.beat("update-1", 0.25, "step 1 of 4")
        view.beat("hint2-rollout-2", 0.5, "8 of 16 rollouts, 100 tokens")
        words = "0%  update-1 25% step 1 of 4 | hint2-rollout-2 50% 8 of 16 rollouts, 100 tokens"
        assert bar(view) == f"round 1 of 3 {' ' * 20} {words}"
        view.outcome(ended("rollout", {}, purpose="hint2"))
        view.beat("update-1", 0.75, "step 3 of 4")
        assert bar(view).endswith("update-1 75% step 3 of 4")
        clock.now += 30
        view.outcome(ended("update", UPDATE, index=1))
        clock.now += 15
        assert bar(view) == f"round 1 of 3 {'━' * 10}{' ' * 10} 50%  0:45 left"


def test_a_pipe_gets_a_line_a_stage() -> None:
    said = io.StringIO()
    with StageView(Console(file=said, width=40), rounds=18) as view:
        view.beat("rollout-2", 1.0, "done")
        view.outcome(ended("rollout", {"summary": {"rows": 9600, "tokens": 381_200}}))
        view.outcome(ended("escalate", {"summary": {"groups": 7}}, purpose="hint2"))
        view.outcome(ended("curate", {}, purpose="eval", reused=True))
        view.outcome(ended("update", UPDATE))
        view.outcome(ended("update", {"metrics": {"reward/mean": 0.5}, "summary": {"tokens_trained": 1234}}))
    assert said.getvalue().splitlines() == [
        "round   2  rollout   9,600 rows, 381,200 tokens (1.0 s)",
        "round   2  hint2-escalate  7 groups (1.0 s)",
        "round   2  eval-curate  (reused)",
        "round   2  update    reward 0.500, 1,234 tokens trained (1.0 s)",
        "round   2  update    1,234 tokens trained (1.0 s)",
    ]
    said = io.StringIO()
    with StageView(Console(file=said, width=160)) as view:
        view.outcome(ended("ingest", {"summary": {"rows": 3}}, index=0))
    assert said.getvalue() == "ingest    3 rows (1.0 s)\n"


WORK = """
import time
from gradus.flows.console.progress_bar import StageView
from tests.flows.console.test_progress import UPDATE, ended
with StageView(rounds=18) as view:
    view.outcome(ended("update", UPDATE, index=7, reused=True))
    time.sleep(0.2)
    view.outcome(ended("update", UPDATE, index=8))
    for step in range(8):
        view.beat("rollout-9", step / 8, f"{step} of 8 rollouts, {1000 * step} tokens")
        time.sleep(0.2)
    view.outcome(ended("rollout", {"summary": {"rows": 8}}, index=9))
"""


def test_a_terminal_sees_the_bar_move_and_a_pipe_sees_lines(tmp_path: Path) -> None:
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "DO_NOT_TRACK": "1", "PYTHONPATH": TESTS_PATH}
    seen = seen_on_a_terminal(WORK, env, "stderr")
    frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode())
    assert re.search(r"round 9 of 18 ━\S+ \d+%  0:0\d left  [\d,]+ tokens/s  rollout-9 \d+% ", frames), frames
    assert "round 9 o…" not in frames
    assert "round   8  update    reward 0.500" in frames
    assert "rows" not in frames  # the line of a stage that is no milestone
    piped = subprocess.run([sys.executable, "-c", WORK], env=env, capture_output=True, text=True, check=True)
    assert piped.stdout == ""
    assert piped.stderr.splitlines() == [
        "round   7  update    reward 0.500, 1,234 tokens trained (reused)",
        "round   8  update    reward 0.500, 1,234 tokens trained (1.0 s)",
        "round   9  rollout   8 rows (1.0 s)",
    ]


def test_an_evaluation_leaves_pass_at_1_and_how_many_rollouts_it_is_of() -> None:
    reward = {"value": 0.25, "low": 0.2, "high": 0.3}
    counts = {"suite": "aime", "judged": 2, "unjudged": 126, "rollouts": 128}
    half = {**counts, "pass_at": {"1": {"value": 0.5}}, "reward_mean": reward}
    whole = {**half, "judged": 128, "unjudged": 0}
    none = {**half, "pass_at": {}, "judged": 0, "unjudged": 128}
    told = [milestone(ended("evaluate", {"summary": summary})) for summary in (half, whole, none)]
    assert told == [
        "evaluate  aime pass@1 0.500 (2 of 128 judged) (1.0 s)",
        "evaluate  aime pass@1 0.500 (1.0 s)",
        "evaluate  aime reward 0.250 (0 of 128 judged) (1.0 s)",
    ]
