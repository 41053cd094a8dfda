"""Rows that a reward could not judge: asked again within an attempt, and by the next one."""

from collections import Counter

import pytest

from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.score.stage import run
from tests.tasks.stages.score.scoring import OUT, rollouts_of, row, score

FLAKY = """
from pathlib import Path

def ask(rows):
    here = Path(__file__).parent
    for row in rows:
        with (here / "asked").open("a") as log:
            log.write(row["completion"] + " ")
        asked = (here / "asked").read_text().split().count(row["completion"])
        if row["completion"].startswith("bad") and asked < int((here / "well_after").read_text()):
            raise ConnectionError("the judge does not answer")
    return [1.0] * len(rows)
"""


@pytest.fixture
def flaky(tmp_path):
    """The name of a reward that asks a judge, the file of what it was asked, and the file of when it answers."""
    (tmp_path / "flaky.py").write_text(FLAKY)
    (tmp_path / "well_after").write_text("9")
    return f"{tmp_path / 'flaky.py'}:ask", tmp_path / "asked", tmp_path / "well_after"


def test_rows_that_failed_are_judged_again_after_a_wait(store, warm, flaky):
    name, asked, well_after = flaky
    well_after.write_text("3")
    config = ScoreConfig(rewards=(RewardConfig(name=name),), retries=3, retry_wait_s=0.01)
    rollouts = rollouts_of(store, *(row("p", completion) for completion in ("a", "bad", "b", "c")))
    result, scores = score(store, warm, config, rollouts)
    assert [s["reward"] for s in scores] == [1.0] * 4
    assert result.summary["error"] == 0
    num_asked = Counter(asked.read_text().split())
    assert num_asked["bad"] == 3  # in the batch, alone, after the first wait
    assert max(num_asked[name] for name in "abc") <= 2


def test_of_a_finished_shard_the_rows_that_failed_are_judged_again(store, warm, flaky):
    name, asked, _ = flaky
    config = ScoreConfig(rewards=(RewardConfig(name=name),), shard_rows=2, max_error_frac=1.0)
    rollouts = rollouts_of(store, *(row("p", completion) for completion in ("a", "bad", "b", "c")))
    out = store.writer(OUT)
    ctx = StageContext(store, {"rollouts": (rollouts,)}, out, 0, warm, lambda frac, text="": None)
    result = run(ctx, config)
    assert (result.summary["error"], sorted(out.done)) == (1, ["part-00000", "part-00001"])
    asked.write_text("bad " * 9)
    result, scores = score(store, warm, config, rollouts)
    assert Counter(asked.read_text().split()) == {"bad": 10}
    assert [(s["rollout_id"], s["reward"], s["outcome"]) for s in scores] == [
        (f"p:{i}", 1.0, "correct") for i in range(4)
    ]
    assert result.summary["error"] == 0
