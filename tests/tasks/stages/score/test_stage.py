"""The stage `score` on a real store with real judges."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pyarrow as pa
import pytest
from pydantic import ValidationError

from gradus.data.errors import BadInputError, StageError, UsageError
from gradus.data.lake.schema import ROLLOUTS, SCORES
from gradus.models.judging.pool import JudgePool
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.stages.gates import score_breach
from gradus.tasks.stages.score.score_report import plain
from gradus.tasks.stages.score.stage import JudgePools
from tests.tasks.stages.score.scoring import OUT, rollouts_of, row, score

NUMERIC = ScoreConfig(rewards=(RewardConfig(name="numeric"),), item_timeout_s=2.0)


def test_a_users_file_needs_three_columns(store, warm):
    rollouts = rollouts_of(
        store, row("a", "#### 3", "3"), row("b", "#### 4", "5"), row("a", "none", "3"), row("a", "<think>", "3")
    )
    result, scores = score(store, warm, NUMERIC, rollouts)
    assert [s["rollout_id"] for s in scores] == ["a:0", "b:0", "a:1", "a:2"]
    assert [s["reward"] for s in scores] == [1.0, 0.0, 0.0, 0.0]
    assert [s["correct"] for s in scores] == [True, False, False, False]
    assert [s["outcome"] for s in scores] == ["correct", "wrong", "unparsed", "unparsed"]
    assert scores[0]["components"] == [("numeric", 1.0)]
    assert scores[0]["extracted"] == "3"
    assert {s["verifier"] for s in scores} == {"numeric@1"}
    assert score_breach(result.kept, NUMERIC) == ""
    assert result.summary == {
        "rows": 4, "correct": 1, "wrong": 1, "unparsed": 2, "timeout": 0, "error": 0,
        "unclaimed": 0, "mean_reward": 0.25, "first_failed": [],
    }  # fmt: skip


def test_metrics_by_hand(store, warm):
    # Groups: g (1, 0), h (1, 1), i alone (0); rewards 1 0 1 1 0, mean 0.6, std sqrt(0.24).
    cells = [("g", "3"), ("g", "4"), ("h", "3"), ("h", "3"), ("i", "")]
    rows = [row("p", f"#### {x}", "3", rollout_id=str(n), group_id=g) for n, (g, x) in enumerate(cells)]
    result = score(store, warm, NUMERIC, rollouts_of(store, *rows))[0]
    metrics = result.metrics
    assert 0 < result.clock["verifier/latency_p95_s"] < 1
    assert metrics == pytest.approx(
        {
            "reward/mean": 0.6,
            "reward/std": 0.24**0.5,
            "reward/numeric": 0.6,
            "reward/frac_zero_std_groups": 2 / 3,  # h, and i, which has nothing to differ from
            "reward/frac_all_right": 1 / 3,
            "verifier/error_frac": 0.0,
            "verifier/timeout_frac": 0.0,
            "verifier/unparsed_frac": 0.2,
        }
    )


def test_golds_come_from_the_problems_where_given(store, warm):
    problems = store.put(
        "problems",
        pa.Table.from_pylist(
            [
                {"problem_id": "a", "question": "1+2?", "answer": "3"},
                {"problem_id": "b", "question": "?", "answer": None},
            ]
        ),
    )
    rollouts = rollouts_of(store, row("a", "#### 3", "9"), row("b", "#### 4", "4"), row("c", "#### 5", "5"))
    result, scores = score(store, warm, NUMERIC, rollouts, problems)
    assert [s["outcome"] for s in scores] == ["correct"] * 3
    assert {sample["rollout_id"]: sample.get("question") for sample in result.samples}["a:0"] == "1+2?"


def test_integer_golds_and_ids_are_accepted(store, warm):
    rollouts = store.put(
        "rollouts",
        pa.table({"rollout_id": ["x", "y"], "problem_id": [7, 7], "completion": ["#### 3", "4"], "answer": [3, 4]}),
    )
    scores = score(store, warm, NUMERIC, rollouts)[1]
    assert [(s["rollout_id"], s["outcome"]) for s in scores] == [("x", "correct"), ("y", "correct")]


def test_a_row_without_gold_or_completion_is_an_error_never_zero(store, warm):
    rollouts = rollouts_of(store, row("a", "#### 3", "3"), row("b", "#### 3"), row("c", None, "3"))
    result, scores = score(store, warm, NUMERIC, rollouts)
    assert [s["reward"] for s in scores] == [1.0, None, None]
    assert [s["correct"] for s in scores] == [True, None, None]
    assert [s["error"] for s in scores] == [None, "numeric: no gold answer", "numeric: no completion"]
    assert "2 of 3 rows (66.7%)" in score_breach(result.kept, NUMERIC)
    assert "b:0: numeric: no gold answer" in score_breach(result.kept, NUMERIC)


def test_the_gate_opens_at_its_limit(store, warm):
    rollouts = rollouts_of(store, *[row("a", "#### 3", "3")] * 19, row("b", "#### 3"))
    report = score(store, warm, NUMERIC, rollouts)[0].kept
    assert score_breach(report, NUMERIC) == ""
    strict = NUMERIC.model_copy(update={"max_error_frac": 0.04})
    assert score_breach(report, strict).startswith("1 of 20 rows (5.0%)")


def test_nothing_judged_is_a_failure(store, warm):
    with pytest.raises(StageError, match=r"not one of 2 rows.*no gold answer"):
        score(store, warm, NUMERIC, rollouts_of(store, row("a", "1"), row("b", "2")))


def test_no_rows_and_no_problem_id_are_refused(store, warm):
    with pytest.raises(BadInputError, match="empty"):
        score(store, warm, NUMERIC, store.put("rollouts", ROLLOUTS.arrow.empty_table()))
    with pytest.raises(BadInputError, match="row 2"):
        score(store, warm, NUMERIC, rollouts_of(store, row("a", "1", "1"), row(None, "2", "2")))


def test_weighted_sum_of_several_rewards(store, warm):
    config = ScoreConfig(
        rewards=(
            RewardConfig.model_validate({"name": "format", "weight": 0.5, "pattern": "^####"}),
            RewardConfig(name="numeric", weight=2.0),
        )
    )
    rollouts = rollouts_of(store, row("a", "#### 3", "3"), row("a", "so 3", "3"), row("a", "#### 4", "3"))
    result, scores = score(store, warm, config, rollouts)
    assert [s["reward"] for s in scores] == [2.5, 2.0, 0.5]
    assert [s["outcome"] for s in scores] == ["correct", "correct", "wrong"]
    assert dict(scores[1]["components"]) == {"format": 0.0, "numeric": 1.0}
    assert scores[0]["verifier"] == "format@1,numeric@1"
    assert result.metrics["reward/format"] == pytest.approx(2 / 3)


def test_a_format_alone_makes_no_claim(store, warm):
    config = ScoreConfig(rewards=(RewardConfig(name="format"),))
    result, scores = score(store, warm, config, rollouts_of(store, row("a", "#### 3"), row("a", "3")))
    assert [(s["reward"], s["correct"], s["outcome"]) for s in scores] == [(1.0, None, None), (0.0, None, None)]
    assert result.summary["unclaimed"] == 2
    assert "reward/frac_all_right" not in result.metrics


def test_a_users_function(store, warm, tmp_path):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent(
            """
            def short(rows):
                assert all({"problem_id", "completion", "answer", "question", "tag"} <= set(row) for row in rows)
                return [None if row["completion"] == "?" else float(len(row["completion"]) < 3) for row in rows]
            """
        )
    )
    config = ScoreConfig(rewards=(RewardConfig(name=f"{tmp_path}/mine.py:short"),), max_error_frac=0.5)
    rows = [row("a", c, None, question="q", tag=1) for c in ("ab", "abc", "?")]
    result, scores = score(store, warm, config, rollouts_of(store, *rows))
    assert [(s["reward"], s["correct"], s["outcome"]) for s in scores] == [
        (1.0, True, "correct"),
        (0.0, False, "wrong"),
        (None, None, "error"),
    ]
    assert "returned None" in scores[2]["error"]
    assert scores[0]["verifier"].startswith("mine.py:short@")
    assert result.metrics["reward/short"] == 0.5


TOKENS = {"prompt_tokens": [1], "completion_tokens": [2, 3], "logprobs": [-0.1, -0.2]}


def test_no_reward_makes_the_stage_read_tokens_and_a_users_sees_all_other_columns(store, warm, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "def f(rows):\n    return [{'value': 1.0, 'extracted': ' '.join(sorted(rows[0]))}]\n"
    )
    asked = []
    read = type(store).read
    monkeypatch.setattr(
        type(store), "read", lambda self, ref, columns=None: (asked.append(columns), read(self, ref, columns))[1]
    )
    rollouts = rollouts_of(store, row("a", "#### 3", "3", mine=1, **TOKENS))
    config = ScoreConfig(rewards=(RewardConfig(name=f"{tmp_path}/mine.py:f"),))
    (shown,) = score(store, warm, config, rollouts)[1]
    assert shown["extracted"] == "answer completion mine problem_id rollout_id"
    assert not set(asked[0]) & set(TOKENS)
    store.discard(OUT)
    asked.clear()
    score(store, warm, NUMERIC, rollouts)
    assert set(asked[0]) <= {"rollout_id", "problem_id", "group_id", "completion", "answer", "hint_text", "error"}


GRADED = """
def graded(rows):
    return [len(row["completion"]) / 10 for row in rows]

def judged(rows):
    return [{"value": len(r["completion"]) / 10, "correct": r["completion"] < "b", "extracted": r["completion"]}
            if r["completion"] != "?" else {"value": 1.0, "correct": "yes"} for r in rows]
"""


def graded_config(tmp_path, function, **settings):
    (tmp_path / "mine.py").write_text(GRADED)
    return ScoreConfig(rewards=(RewardConfig(name=f"{tmp_path}/mine.py:{function}"),), **settings)


def test_a_graded_reward_without_a_threshold_makes_no_claim_and_says_what_to_set(store, warm, tmp_path):
    rollouts = rollouts_of(store, row("a", "abc"), row("a", "abcdef"))
    result, scores = score(store, warm, graded_config(tmp_path, "graded"), rollouts)
    assert [(s["reward"], s["correct"], s["outcome"]) for s in scores] == [(0.3, None, None), (0.6, None, None)]
    assert result.summary["note"].startswith("2 of 2 rows have a reward and no verdict")
    assert "`correct_at`" in result.summary["note"]


def test_a_stated_threshold_decides_what_a_graded_reward_calls_correct(store, warm, tmp_path):
    rollouts = rollouts_of(store, row("a", "abc"), row("a", "abcdef"))
    result, scores = score(store, warm, graded_config(tmp_path, "graded", correct_at=0.6), rollouts)
    assert [(s["reward"], s["correct"], s["outcome"]) for s in scores] == [
        (0.3, False, "wrong"),
        (0.6, True, "correct"),
    ]
    assert "note" not in result.summary


def test_a_functions_own_verdicts_stand_and_a_bad_answer_names_its_row(store, warm, tmp_path):
    rollouts = rollouts_of(store, row("a", "abc"), row("a", "xyz"), row("b", "?"))
    config = graded_config(tmp_path, "judged", correct_at=0.9)
    result, scores = score(store, warm, config, rollouts)
    assert [(s["reward"], s["correct"], s["extracted"]) for s in scores] == [
        (0.3, True, "abc"),
        (0.3, False, "xyz"),
        (None, None, None),
    ]
    told = score_breach(result.kept, config)
    assert "b:0: judged: the function returned 'yes' as 'correct', not True, False or None" in told


def test_a_reward_that_cannot_be_used_is_refused_first(store, warm):
    with pytest.raises(ValidationError, match="no reward 'maths'"):
        RewardConfig(name="maths")
    nowhere = ScoreConfig(rewards=(RewardConfig(name="/nowhere/x.py:f"),))
    with pytest.raises(UsageError, match="there is no file"):
        score(store, warm, nowhere, rollouts_of(store, row("a", "1", "1")))


def test_a_users_file_that_does_not_load_is_named(store, warm, tmp_path):
    (tmp_path / "bad.py").write_text("import nothing_of_that_name")
    config = ScoreConfig(rewards=(RewardConfig(name=f"{tmp_path}/bad.py:f"),))
    with pytest.raises(BadInputError, match=r"bad\.py line 1 fails to load: ModuleNotFoundError"):
        score(store, warm, config, rollouts_of(store, row("a", "1", "1")))


def test_shards_are_slices_and_the_finished_are_read_back(store, warm):
    rollouts = rollouts_of(store, *[row("a", f"#### {i}", "3") for i in range(10)])
    config = NUMERIC.model_copy(update={"shard_rows": 4})
    beats = []
    whole, scores = score(store, warm, config, rollouts, beats=beats)
    assert [s["rollout_id"] for s in scores] == [f"a:{i}" for i in range(10)]
    assert beats[-1] == (1.0, "10 of 10 rows judged")
    bytes_before = [path.read_bytes() for path in store.files(OUT)]
    assert len(bytes_before) == 3
    store.discard(OUT)
    # The middle shard is there already, with a mark that judging would not leave.
    marked = pa.Table.from_pylist(scores[4:8], schema=SCORES.arrow).set_column(
        8, SCORES.arrow.field("verifier"), pa.array(["earlier"] * 4)
    )
    store.writer(OUT).write_table(marked, 1)
    resumed, again = score(store, warm, config, rollouts)
    assert [s["verifier"] for s in again] == ["numeric@1"] * 4 + ["earlier"] * 4 + ["numeric@1"] * 2
    assert resumed.summary == whole.summary


def test_pools_stay_warm_and_leave_with_their_rewards(store, warm):
    rollouts = rollouts_of(store, row("a", "#### 3", "3"))
    score(store, warm, NUMERIC, rollouts)
    (pool,) = warm.of(JudgePools).values()
    pids = pool.pids
    store.discard(OUT)
    score(store, warm, NUMERIC, rollouts)
    assert list(warm.of(JudgePools).values()) == [pool]
    assert pool.pids == pids
    store.discard(OUT)
    score(store, warm, ScoreConfig(rewards=(RewardConfig(name="exact"),)), rollouts)
    assert isinstance(next(iter(warm.of(JudgePools).values())), JudgePool)
    assert pool not in warm.of(JudgePools).values()
    assert pool.pids == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone has affinities")
def test_there_are_no_more_judges_than_cpus_that_the_stage_may_use(store, warm):
    rollouts, before = rollouts_of(store, *(row(f"p{i}", "#### 3", "3") for i in range(40))), os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        score(store, warm, NUMERIC, rollouts)
    finally:
        os.sched_setaffinity(0, before)
    (pool,) = warm.of(JudgePools).values()
    assert len(pool.pids) == 1


def test_samples_hold_best_worst_and_failed(store, warm):
    rows = [row(f"p{i}", f"#### {i % 2}", "1" if i < 30 else None) for i in range(40)]
    result, _ = score(store, warm, NUMERIC, rollouts_of(store, *rows))
    assert [s["outcome"] for s in result.samples] == ["correct"] * 6 + ["wrong"] * 6 + ["error"] * 4


def test_a_hostile_text_becomes_one_plain_line():
    assert plain("a\x1b[2J\nb\x00\u202ec" + "d" * 500, max_chars=12) == "a [2J b  cdd"


def test_hostile_errors_and_completions_are_stored(store, warm, tmp_path):
    (tmp_path / "bad.py").write_text('def f(rows):\n    raise ValueError("\\ud800 \\x00 <b>")\n')
    config = ScoreConfig(
        rewards=(RewardConfig(name="numeric"), RewardConfig(name=f"{tmp_path}/bad.py:f", weight=0.0)),
        max_error_frac=1.0,
    )
    with pytest.raises(StageError, match="not one of 1 rows"):
        score(store, warm, config, rollouts_of(store, row("a", "\x00 #### 3", "3")))
    assert store.writer(OUT).table("part-00000").to_pylist()[0]["error"] == "f: ValueError: \ufffd \x00 <b>"


_ATTEMPT = """
import sys
from pathlib import Path
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.score.stage import run
from gradus.tasks.host.processes import Warm

store = Store(Path(sys.argv[1]))
out = store.writer(Ref("scores", "0123456789abcdef"))
config = ScoreConfig(rewards=(RewardConfig(name="numeric"),), shard_rows=4)
ctx = StageContext(store, {"rollouts": (Ref.parse(sys.argv[2]),)}, out, 0, Warm(), lambda frac, text="": None)
print(sorted(out.done))
run(ctx, config)
out.commit()
"""


@pytest.mark.parametrize(("fault", "done"), [("score:before_shard#2", 1), ("score:after_shard#2", 2)])
def test_killed_at_a_shard_and_started_again_gives_the_same_bytes(store, warm, fault, done):
    rollouts = rollouts_of(store, *[row("a", f"#### {i}", "3") for i in range(10)])
    score(store, warm, NUMERIC.model_copy(update={"shard_rows": 4}), rollouts)
    undisturbed = [path.read_bytes() for path in store.files(OUT)]
    store.discard(OUT)
    command = [sys.executable, "-c", _ATTEMPT, str(store.root), str(rollouts)]
    killed = subprocess.run(command, env=os.environ | {"GRADUS_FAULT": fault}, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert store.find(OUT) is None
    resumed = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert resumed.stdout.count("part-") == done
    assert [path.read_bytes() for path in store.files(OUT)] == undisturbed


def test_a_choice_sees_the_options_of_its_row(store, warm):
    """In a column of the rollouts, or in the `extra` of the problem, as `ingest` keeps what it does not know."""
    choice = ScoreConfig(rewards=(RewardConfig(name="choice"),))
    options = ["ibuprofen", "aspirin"]
    rollouts = rollouts_of(
        store, row("a", "(B)", "aspirin", options=options), row("b", "Aspirin.", "B", options=options)
    )
    _, scores = score(store, warm, choice, rollouts)
    assert [(s["outcome"], s["extracted"]) for s in scores] == [("correct", "B"), ("correct", "B")]
    problem = {"problem_id": "c", "question": "?", "answer": "aspirin", "extra": json.dumps({"options": options})}
    problems = store.put("problems", pa.Table.from_pylist([problem]))
    store.discard(OUT)
    _, scores = score(store, warm, choice, rollouts_of(store, row("c", "(B)"), row("c", "(A)")), problems)
    assert [s["outcome"] for s in scores] == ["correct", "wrong"]
