"""Stage evaluate: rows, rates and majorities by hand; intervals; the paired gain; what is refused."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import UNJUDGED
from gradus.data.errors import BadInputError, GateError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.score import EvaluateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.evaluate import run
from gradus.tasks.stages.gates import verdict_breach

Answers = dict[str, list[tuple[str | None, bool | None]]]

RIGHT, WRONG, UNREAD, FAILED = ("4", True), ("5", False), (None, False), (None, None)


def evaluate(
    tmp_path: Path,
    answers: Answers,
    config: EvaluateConfig,
    *,
    name: str = "0",
    suite: str = "s",
    policy: str | None = "p0",
    baseline: Ref | None = None,
    domains: dict[str, str | None] | None = None,
    hint_level: int = 0,
    known: list[str] | None = None,
    rewards: dict[str, list[float]] | None = None,
    left_out: dict[str, str] | None = None,
) -> tuple[Ref, list[dict[str, object]], StageResult]:
    store = Store(tmp_path)
    problems = known or list(answers)
    rows = [(p, i, *answer) for p, given in answers.items() for i, answer in enumerate(given)]
    ids = [f"{p}@r0h0:{i}" for p, i, _, _ in rows]
    tables = {
        "problems": pa.table(
            {
                "problem_id": problems,
                "question": [f"what is {p}?" for p in problems],
                "domain": pa.array([(domains or {}).get(p) for p in problems], pa.string()),
            }
        ),
        "rollouts": pa.table(
            {
                "rollout_id": ids,
                "problem_id": [r[0] for r in rows],
                "sample": [r[1] for r in rows],
                "completion": ["..."] * len(rows),
                "completion_tokens": [[1] * (1 + r[1]) for r in rows],
                "policy": pa.array([policy] * len(rows), pa.string()),
                "hint_level": [hint_level] * len(rows),
            }
        ),
        "scores": pa.table(
            {
                "rollout_id": ids,
                "problem_id": [r[0] for r in rows],
                "reward": [None if r[3] is None else float(r[3]) for r in rows],
                "correct": pa.array([r[3] for r in rows], pa.bool_()),
                "extracted": pa.array([r[2] for r in rows], pa.string()),
            }
        ),
    }
    if rewards is not None:
        values = pa.array([value for p in answers for value in rewards[p]], pa.float64())
        tables["scores"] = tables["scores"].set_column(2, "reward", values)
    if left_out is not None:
        reasons = [left_out.get(each) for each in ids]
        taken = {"taken": [reason is None for reason in reasons], "reason": pa.array(reasons, pa.string())}
        tables["batch"] = pa.table({"rollout_id": ids, "group_id": ids, "problem_id": [r[0] for r in rows], **taken})
    inputs = {role: (store.put(role, table),) for role, table in tables.items()}
    if baseline is not None:
        inputs["baseline"] = (baseline,)
    ref = Ref("evaluations", name * 8)
    store.discard(ref)
    writer = store.writer(ref)
    result = run(StageContext(store, inputs, writer, 3, Warm(), lambda frac, text="": None, {"suite": suite}), config)
    writer.commit()
    return ref, store.read(ref).to_pylist(), result


ANSWERS: Answers = {
    "a": [RIGHT, WRONG, RIGHT, UNREAD],
    "b": [WRONG, ("5.0", False), ("6", False), RIGHT],
    "c": [RIGHT, WRONG, FAILED, FAILED],
    "d": [FAILED],
}


def test_one_row_per_problem_with_its_counts_majority_and_length(tmp_path: Path) -> None:
    _, rows, result = evaluate(
        tmp_path, ANSWERS, EvaluateConfig(ks=(1, 2)), suite="held out", domains={"a": "x", "b": "y", "c": "x"}
    )
    named = [(r["problem_id"], r["n"], r["k"], r["majority_correct"], r["mean_tokens"]) for r in rows]
    assert named == [
        ("a", 4, 2, True, 2.5),
        ("b", 4, 1, False, 2.5),
        ("c", 2, 1, False, 1.5),  # a tie is no majority
        ("d", 0, 0, None, None),
    ]
    assert {(r["checkpoint"], r["suite"]) for r in rows} == {("p0", "held out")}
    summary = result.summary
    assert summary["pass_at"]["1"]["value"] == pytest.approx((1 / 2 + 1 / 4 + 1 / 2) / 3)
    # pass@2: 1 - C(2,2)/C(4,2), 1 - C(3,2)/C(4,2), 1
    assert summary["pass_at"]["2"]["value"] == pytest.approx((5 / 6 + 1 / 2 + 1) / 3)
    # of the first two samples: a ties, b has wrong twice, c ties
    assert summary["maj_at"]["2"]["value"] == pytest.approx((0.5 + 0 + 0.5) / 3)
    assert summary["maj_at"]["1"]["value"] == pytest.approx(2 / 3)
    assert summary["fewer_samples_than"] == {"1": 1, "2": 1}
    assert (summary["rows"], summary["unjudged"]) == (4, 3)
    of_x = summary["per_domain"]["x"]
    assert (of_x["pass_at_1"], of_x["n"]) == (0.5, 2)
    assert 0 <= of_x["low"] < 0.1  # two problems that agree prove little
    assert 0.9 < of_x["high"] <= 1
    assert list(summary["per_domain"]) == ["x", "y"]
    assert result.metrics["eval/held_out/pass_at_2"] == summary["pass_at"]["2"]["value"]
    assert result.metrics["eval/held_out/ci_low"] == summary["pass_at"]["1"]["low"]
    assert all(np.isfinite(value) for value in result.metrics.values())
    assert len(result.samples) == 13
    assert result.samples[0]["question"] == "what is a?"


def test_what_the_shapes_of_a_suite_took_is_evaluated_and_what_nothing_judged_counts_as_unjudged(
    tmp_path: Path,
) -> None:
    # Taken: a:0 right, b:2 wrong, c:0 right. Left out as unjudged: c:2, which has no reward, and b:3, which has one.
    out = dict.fromkeys(["a@r0h0:1", "a@r0h0:2", "a@r0h0:3", "b@r0h0:0", "b@r0h0:1", "c@r0h0:1", "c@r0h0:3"], "another")
    out |= {"c@r0h0:2": UNJUDGED, "b@r0h0:3": UNJUDGED, "d@r0h0:0": "another"}
    _, rows, result = evaluate(tmp_path, ANSWERS, EvaluateConfig(ks=(1,)), left_out=out)
    assert [(row["n"], row["k"]) for row in rows] == [(1, 1), (1, 0), (1, 1), (0, 0)]
    assert result.summary["pass_at"]["1"]["value"] == pytest.approx(2 / 3)
    assert (result.summary["rollouts"], result.summary["judged"]) == (4, 3)
    assert result.summary["fewer_samples_than"] == {"1": 1}
    every = {f"{p}@r0h0:{i}": "another" for p, given in ANSWERS.items() for i in range(len(given))}
    with pytest.raises(GateError, match="the shapes of the suite take none of 13 rollouts"):
        evaluate(tmp_path, ANSWERS, EvaluateConfig(ks=(1,)), left_out=every)


def test_without_answers_that_can_vote_there_is_no_majority(tmp_path: Path) -> None:
    answers: Answers = {"a": [(None, True), (None, False)], "b": [(None, False), (None, False)]}
    summary = evaluate(tmp_path, answers, EvaluateConfig(ks=(1, 2)), suite="s")[2]
    assert summary.summary["pass_at"]["1"]["value"] == 0.25
    assert "maj_at" not in summary.summary
    assert not any("maj" in name for name in summary.metrics)
    answers["b"][1] = ("7", True)
    voted = evaluate(tmp_path, answers, EvaluateConfig(ks=(1, 2)), suite="s")[2].summary["maj_at"]
    assert (voted["1"]["value"], voted["2"]["value"]) == (0.0, 0.5)  # b's only vote is its second completion


UNCLAIMED = (None, None)


def test_the_mean_reward_has_an_interval_and_counts_rows_without_a_verdict(tmp_path: Path) -> None:
    answers: Answers = {"a": [RIGHT, UNCLAIMED], "b": [UNCLAIMED, UNCLAIMED], "c": [WRONG, WRONG]}
    rewards = {"a": [1.0, 0.5], "b": [0.2, 0.6], "c": [0.0, 0.0]}
    config = EvaluateConfig(ks=(1, 2), max_unjudged_frac=0.5)
    _, rows, result = evaluate(tmp_path, answers, config, rewards=rewards)
    found = [(r["n"], r["k"], r["reward_n"], r["reward_mean"], r["reward_variance"]) for r in rows]
    assert found[0] == (1, 1, 2, 0.75, 0.0625)  # distances 0.25 and 0.25
    assert found[1] == (0, 0, 2, pytest.approx(0.4), pytest.approx(0.04))
    assert found[2] == (2, 0, 2, 0.0, 0.0)
    interval = result.summary["reward_mean"]
    assert interval["value"] == pytest.approx((0.75 + 0.4 + 0.0) / 3)
    assert 0.0 <= interval["low"] < interval["value"] < interval["high"] <= 1.0
    assert (result.summary["judged"], result.summary["rollouts"], result.summary["coverage"]) == (3, 6, 0.5)
    assert result.metrics["eval/s/coverage"] == 0.5
    assert result.metrics["eval/s/reward_mean"] == interval["value"]
    assert result.summary["pass_at"]["2"]["value"] == 0.0  # of c alone
    assert verdict_breach(result.kept, config) == ""


def test_too_few_verdicts_breach_the_gate_which_says_what_to_do(tmp_path: Path) -> None:
    answers: Answers = {"a": [RIGHT] + [UNCLAIMED] * 7, "b": [WRONG] + [UNCLAIMED] * 6 + [FAILED]}
    rewards = {"a": [1.0] + [0.5] * 7, "b": [0.0] + [0.5] * 6 + [float("nan")]}
    _, _, result = evaluate(tmp_path, answers, EvaluateConfig(), rewards=rewards)
    told = verdict_breach(result.kept, EvaluateConfig())
    assert "14 of 16 rollouts (87.5%) have no verdict on correctness" in told
    assert "13 have a reward that makes no claim, 1 could not be judged (the first: a@r0h0:1, a@r0h0:2" in told
    assert "correct_at" in told
    assert result.summary["fewer_samples_than"] == {"8": 2}  # and pass@8 is left out
    assert set(result.summary["pass_at"]) == {"1"}
    assert verdict_breach(result.kept, EvaluateConfig(max_unjudged_frac=0.875)) == ""


def test_rewards_without_any_verdict_are_compared_by_their_mean(tmp_path: Path) -> None:
    answers: Answers = {"a": [UNCLAIMED] * 2, "b": [UNCLAIMED] * 2}
    config = EvaluateConfig(ks=(1,), max_unjudged_frac=1.0)
    base, _, _ = evaluate(tmp_path, answers, config, rewards={"a": [0.1, 0.3], "b": [0.5, 0.5]})
    _, rows, result = evaluate(
        tmp_path, answers, config, name="1", rewards={"a": [0.5, 0.5], "b": [0.5, 0.7]}, baseline=base
    )
    assert [(r["n"], r["k"], r["majority_correct"], r["mean_tokens"]) for r in rows] == [(0, 0, None, 1.5)] * 2
    assert (result.summary["pass_at"], result.summary["coverage"]) == ({}, 0.0)
    assert verdict_breach(result.kept, config) == ""
    # a from 0.2 to 0.5, b from 0.5 to 0.6: paired, (0.3 + 0.1) / 2
    assert result.summary["versus"]["reward_gain"]["value"] == pytest.approx(0.2)
    assert "gain" not in result.summary["versus"]
    assert result.metrics["eval/s/reward_gain"] == pytest.approx(0.2)
    assert "eval/s/pass_at_1" not in result.metrics


def test_the_gain_is_paired_and_counts_what_was_solved_and_lost(tmp_path: Path) -> None:
    before: Answers = {p: [WRONG] * 4 for p in "abcd"} | {"e": [RIGHT] * 4, "f": [RIGHT] * 4}
    after: Answers = {p: [RIGHT, WRONG, WRONG, WRONG] for p in "abcd"} | {
        "e": [WRONG] * 4,
        "f": [RIGHT] * 4,
        "new": [RIGHT] * 4,
    }
    config = EvaluateConfig(ks=(1, 4))
    base, _, _ = evaluate(tmp_path, before, config)
    _, _, result = evaluate(
        tmp_path, after, config, name="1", policy="p1", baseline=base, domains=dict.fromkeys("abcd", "easy")
    )
    versus = result.summary["versus"]
    assert (versus["baseline"], versus["problems"]) == ("p0", 6)
    assert (versus["newly_solved"], versus["newly_lost"]) == (4, 1)
    assert versus["gain"]["value"] == pytest.approx((4 * 0.25 - 1) / 6)
    assert versus["gain"]["low"] <= versus["gain"]["value"] <= versus["gain"]["high"]
    assert versus["gain_at"]["4"]["value"] == pytest.approx((4 - 1) / 6)
    of_easy = result.summary["per_domain"]["easy"]["gain"]
    assert of_easy["value"] == 0.25
    assert of_easy["low"] < 0
    assert of_easy["high"] > 0.7
    assert result.metrics["eval/s/newly_solved"] == 4


def test_the_same_evaluation_gives_the_same_intervals(tmp_path: Path) -> None:
    _, _, first = evaluate(tmp_path, ANSWERS, EvaluateConfig(ks=(1,)))
    _, _, again = evaluate(tmp_path, ANSWERS, EvaluateConfig(ks=(1,)))
    assert first.summary == again.summary
    interval = first.summary["pass_at"]["1"]
    assert 0.0 <= interval["low"] < interval["value"] < interval["high"] <= 1.0


def test_problems_that_agree_do_not_make_an_interval_without_width(tmp_path: Path) -> None:
    names = [f"p{i}" for i in range(12)]
    base, _, _ = evaluate(tmp_path, {name: [RIGHT] * 4 for name in names}, EvaluateConfig(ks=(1,)))
    _, _, result = evaluate(
        tmp_path, {name: [RIGHT] * 4 for name in names}, EvaluateConfig(ks=(1,)), name="1", policy="p1", baseline=base
    )
    found = result.summary["pass_at"]["1"]
    assert found["value"] == found["high"] == 1.0
    assert 0.65 < found["low"] < 0.8  # Wilson, 12 of 12: 0.757
    gain = result.summary["versus"]["gain"]
    assert (gain["low"], gain["high"]) == pytest.approx((-0.2425, 0.2425), abs=1e-4)  # z^2 / (12 + z^2)


def test_too_few_samples_for_a_k_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="pass@8 needs 8 judged rollouts of a problem, the most that one has is 4"):
        evaluate(tmp_path, ANSWERS, EvaluateConfig(ks=(1, 8)))


def test_foreign_hinted_and_unjudged_rollouts_are_refused(tmp_path: Path) -> None:
    config = EvaluateConfig(ks=(1,))
    with pytest.raises(BadInputError, match="'b@r0h0:0' of problem 'b' answers a problem that is not in"):
        evaluate(tmp_path, ANSWERS, config, known=["a"])
    with pytest.raises(BadInputError, match="saw a hint"):
        evaluate(tmp_path, ANSWERS, config, hint_level=1)
    with pytest.raises(GateError, match="none of 1 rollouts has a verdict"):
        evaluate(tmp_path, {"d": [FAILED]}, config)


def test_a_baseline_of_other_problems_or_of_two_checkpoints_is_refused(tmp_path: Path) -> None:
    config = EvaluateConfig(ks=(1,))
    base, _, _ = evaluate(tmp_path, {"z": [RIGHT]}, config)
    with pytest.raises(BadInputError, match="shares no judged problem"):
        evaluate(tmp_path, ANSWERS, config, name="1", baseline=base)
    two = pa.table({"checkpoint": ["p", "q"], "suite": ["s", "s"], "problem_id": ["a", "a"], "n": [1, 1], "k": [1, 1]})
    with pytest.raises(BadInputError, match="several evaluations"):
        evaluate(tmp_path, ANSWERS, config, name="1", baseline=Store(tmp_path).put("evaluations", two))


def test_a_policy_that_is_not_named_is_unknown(tmp_path: Path) -> None:
    _, rows, _ = evaluate(tmp_path, ANSWERS, EvaluateConfig(ks=(1,)), policy=None)
    assert {row["checkpoint"] for row in rows} == {"unknown"}
