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
from rich.progress import Task

from gradus.data.lake.store import Ref
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


def watched(clock: Clock, rounds: int) -> StageView:
    return StageView(Console(file=io.StringIO(), force_terminal=True, width=160), rounds=rounds, clock=clock)


def bar(view: StageView, name: str = "round") -> Task:
    (found,) = [task for task in view.tasks if task.description.startswith(name)]
    return found


def test_the_time_left_is_that_of_the_rounds_computed_times_those_left() -> None:
    clock = Clock()
    view = watched(clock, 18)
    view.beat("eval-rollout-0", 0.5, "")
    clock.now += 50
    view.outcome(ended("rollout", {}, 0, "eval"))
    view.beat("rollout-1", 0.5, "")
    assert (bar(view).description, bar(view).completed, bar(view).time_remaining) == ("round 1 of 18", 0, None)
    for index, seconds in ((1, 8), (2, 12)):  # 50 s before the first round are no part of it
        clock.now += seconds
        view.outcome(ended("update", UPDATE, index))
    assert (bar(view).completed, bar(view).time_remaining) == (2, 16 * 10)


def test_rounds_that_were_reused_say_nothing_of_how_long_one_takes() -> None:
    clock = Clock()
    view = watched(clock, 4)
    for index in (1, 2):
        clock.now += 0.1
        view.outcome(ended("update", UPDATE, index, reused=True))
    assert (bar(view).completed, bar(view).time_remaining) == (2, None)
    clock.now += 20
    view.outcome(ended("update", UPDATE, 3))
    assert bar(view).time_remaining == 20


def test_two_stages_at_once_have_a_bar_each_until_one_ends() -> None:
    clock = Clock()
    view = watched(clock, 3)
    view.beat("update-1", 0.0, "")
    view.beat("hint2-rollout-2", 0.0, "")
    clock.now += 10
    view.beat("update-1", 0.25, "step 1 of 4")
    view.beat("hint2-rollout-2", 0.5, "8 of 16 rollouts, 100 tokens")
    assert bar(view, "update").time_remaining == 30
    console = Console(file=io.StringIO(), width=160)
    console.print(view.make_tasks_table(view.tasks))
    said = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert re.search(r"hint2-rollout-2 \S*\s+50% 00:10 10 tokens/s 8 of 16 rollouts, 100 tokens", said), said
    view.outcome(ended("rollout", {}, purpose="hint2"))
    assert [task.description for task in view.tasks] == ["round 2 of 3", "update-1"]


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
    assert re.search(r"round 9 of 18 ━\S+\s+\d+% 00:0\d", frames), frames
    assert re.search(r"rollout-9 +━\S+\s+\d+% 00:0\d [\d,]+ tokens/s \d of 8 rollouts", frames), frames
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


@pytest.mark.parametrize(
    ("groups", "reason"), [(3, "all 3 groups have rewards without variance"), (0, "shapes leave out every group")]
)
def test_an_update_that_is_skipped_says_why(groups: int, reason: str) -> None:
    outcome = ended("update", {"summary": {"skipped_updates": 1, "groups": groups}})
    assert f" skipped: {reason} (" in milestone(outcome)


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
