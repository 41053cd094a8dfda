"""The moving line: every stage that runs is in it, and none that has ended."""

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from data.store import Ref
from flows.progress import StageView, milestone
from tasks.calls import Outcome


def ended(stage: str, report: Mapping[str, Any], index: int = 2, purpose: str = "train") -> Outcome:
    return Outcome(stage, purpose, index, Ref("rollouts", "0" * 8), reused=False, seconds=1.0, report=report)


def test_two_stages_at_once_share_the_line_until_one_ends() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    with StageView(console) as view:
        assert view._status is not None
        view.beat("update-1", 0.25, "step 1 of 4")
        view.beat("hint2-rollout-2", 0.5, "8 of 16 rollouts")
        assert str(view._status.status) == "update-1   25%  step 1 of 4  |  hint2-rollout-2   50%  8 of 16 rollouts"
        view.outcome(ended("rollout", {}, purpose="hint2"))
        view.beat("update-1", 0.75, "step 3 of 4")
        assert str(view._status.status) == "update-1   75%  step 3 of 4"


def test_an_update_leaves_a_line_and_a_rollout_none() -> None:
    said = io.StringIO()
    with StageView(Console(file=said, width=160)) as view:
        view.beat("rollout-2", 1.0, "done")
        view.outcome(ended("rollout", {}))
        view.outcome(ended("update", {"metrics": {"trained/reward_mean": 0.5}, "summary": {"tokens_trained": 1234}}))
        view.outcome(ended("update", {"metrics": {"reward/mean": 0.5}, "summary": {"tokens_trained": 1234}}))
    assert said.getvalue().splitlines() == [
        "round   2  update    reward 0.500, 1,234 tokens trained (1.0 s)",
        "round   2  update    1,234 tokens trained (1.0 s)",
    ]


def test_an_evaluation_leaves_pass_at_1_and_how_many_rollouts_it_is_of() -> None:
    reward = {"value": 0.25, "low": 0.2, "high": 0.3}
    counts = {"suite": "aime", "judged": 2, "unjudged": 126, "rollouts": 128}
    half = {**counts, "pass_at": {"1": {"value": 0.5}}, "reward_mean": reward}
    whole = {**half, "judged": 128, "unjudged": 0}
    none = {**half, "pass_at": {}, "judged": 0, "unjudged": 128}
    told = [milestone(ended("evaluate", {"summary": summary})) for summary in (half, whole, none)]
    assert told == [
        "round   2  evaluate  aime pass@1 0.500 (2 of 128 judged) (1.0 s)",
        "round   2  evaluate  aime pass@1 0.500 (1.0 s)",
        "round   2  evaluate  aime reward 0.250 (0 of 128 judged) (1.0 s)",
    ]
