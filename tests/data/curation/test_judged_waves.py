"""Waves of judges, critiques and references, and shapes of what they say: prompts, groups and rewards, by hand."""

import numpy as np
import pyarrow as pa
import pytest

from gradus.data.curation.batch import BatchRows
from gradus.data.curation.by_use import of_use
from gradus.data.curation.round import Round, round_of
from gradus.data.curation.shapes.judged import preference_strength, same_as_reference
from gradus.data.curation.shapes.verified import prefers_better
from gradus.data.curation.uses import LEARN
from gradus.data.curation.waves.judged import critique, pairs, reconcile, refine
from gradus.data.curation.waves.verified import beside_reference


def answers() -> Round:
    """A round of two groups: three answers to a, two to b, of which the last failed."""
    rows = pa.table(
        {
            "problem_id": list("aaabb"),
            "group": [0, 0, 0, 1, 1],
            "completion": ["x", "{first}", "z", "u", None],
            "correct": [0.0, 0.0, 1.0, 0.0, None],
            "problem.question": ["a?", "a?", "a?", None, None],
            "problem.messages": [None, None, None, *([[{"role": "user", "content": "b?"}]] * 2)],
        }
    )
    return round_of(rows)


def test_a_judge_is_asked_about_all_pairs_in_an_order_that_is_drawn() -> None:
    plan = pairs(answers(), np.random.default_rng(0), template="{question} 1: {first} 2: {second}")
    assert plan is not None
    swapped = np.random.default_rng(0).random(3) < 0.5
    assert 0 < swapped.sum() < 3
    both = [("0", "1"), ("0", "2"), ("1", "2")]  # of b one answer failed
    wanted = [list(pair[::-1] if turn else pair) for pair, turn in zip(both, swapped, strict=True)]
    assert plan.columns["about"].to_pylist() == wanted
    text = ["x", "{first}", "z"]
    assert [message[0]["content"] for message in plan.columns["messages"].to_pylist()] == [
        f"a? 1: {text[int(one)]} 2: {text[int(two)]}" for one, two in wanted
    ]
    assert plan.columns["role"].to_pylist() == plan.columns["use"].to_pylist() == ["judge"] * 3
    assert (plan.columns["n"].to_pylist(), plan.columns["temperature"].to_pylist()) == ([1] * 3, [0.0] * 3)
    several = pairs(answers(), np.random.default_rng(0), n=4)
    assert several is not None
    assert several.columns["n"].to_pylist() == [4] * 3
    assert "temperature" not in several.columns


def verdicts(rewards: list[float | None], about: list[list[str]]) -> BatchRows:
    """Answers a0, a1, a2 to a and b0, b1 to b, with what a judge said of pairs."""
    num = len(rewards)
    table = pa.table(
        {
            "rollout_id": ["a0", "a1", "a2", "b0", "b1", *(f"j{at}" for at in range(num))],
            "problem_id": ["a", "a", "a", "b", "b", *"j" * num],
            "group": [0, 0, 0, 1, 1, *range(2, 2 + num)],
            "reward": pa.array([None] * 5 + rewards, pa.float64()),
            "use": pa.array([None] * 5 + ["judge"] * num, pa.string()),
            "about": pa.array([None] * 5 + about, pa.list_(pa.string())),
        }
    )
    return BatchRows(of_use(table, LEARN), beside=table)


def test_the_advantage_is_how_strongly_a_row_is_preferred_to_the_others_of_its_group() -> None:
    pairs_ = [["a0", "a1"], ["a1", "a0"], ["a2", "a0"], ["a1", "a2"], ["b0", "b1"], ["b0", "gone"]]
    found = preference_strength(verdicts([1.0, 0.5, 0.0, None, None, 1.0], pairs_), eps=0.0)["reward"]
    # d_01 = (1 + 0) / 2 = 1/2, d_02 = 1, d_12 = 0: the sums 3/2, -1/2, -1 over 3, by the root of (1/4 + 1) / (3 * 2).
    scale = (1.25 / 6) ** 0.5
    assert found.tolist() == pytest.approx([0.5 / scale, -1 / 6 / scale, -1 / 3 / scale, np.nan, np.nan], nan_ok=True)
    ties = preference_strength(verdicts([0.5], [["b0", "b1"]]))["reward"]
    assert ties.tolist() == pytest.approx([np.nan] * 3 + [0.0, 0.0], nan_ok=True)


def test_if_preferences_are_differences_of_rewards_it_is_the_advantage_of_grpo() -> None:
    r = np.array([0.1, 0.4, 0.3])
    pairs_ = [(0, 1), (0, 2), (1, 2)]
    said = [(1 + r[i] - r[j]) / 2 for i, j in pairs_]
    found = preference_strength(verdicts(said, [[f"a{i}", f"a{j}"] for i, j in pairs_]), eps=0.0)["reward"][:3]
    assert found == pytest.approx((r - r.mean()) / r.std(ddof=1))


def test_a_judge_is_rewarded_for_preferring_the_better_of_two_answers() -> None:
    policy = pa.table(
        {"rollout_id": list("xyzw"), "use": ["policy"] * 4, "reward": [1.0, 0.0, 0.0, None], "about": [None] * 4}
    )
    own = pa.table(
        {
            "rollout_id": [f"v{n}" for n in range(8)],
            "about": [list(each) for each in ("xy", "xy", "yx", "yz", "xw", "xy", "xy", "qy")],
            "reward": [1.0, 0.0, 0.0, 1.0, 1.0, None, 0.5, 1.0],
        }
    )
    found = prefers_better(BatchRows(own, beside=policy))["reward"]
    assert found.tolist() == pytest.approx([1.0, 0.0, 1.0, np.nan, np.nan, 0.0, 0.0, np.nan], nan_ok=True)


def test_answers_are_judged_beside_the_reference_of_their_problem() -> None:
    rows = pa.table(
        {
            "problem_id": list("aabcd"),
            "group": [0, 0, 1, 2, 3],
            "completion": ["x", "{reference}", None, "z", "u"],
            "problem.question": ["a?", "a?", "b?", "c?", "d?"],
            "problem.messages": pa.nulls(5),
            "problem.answer": ["1", "1", "2", None, None],
            "problem.solution": [None, None, "s", "t", None],
        }
    )
    plan = beside_reference(round_of(rows), np.random.default_rng(0), template="{question} {answer} {reference}")
    assert plan is not None
    assert plan.columns["about"].to_pylist() == [["0"], ["1"], ["3"]]
    asked = [each[0]["content"] for each in plan.columns["messages"].to_pylist()]
    assert asked == ["a? x 1", "a? {reference} 1", "c? z t"]
    unruled = beside_reference(round_of(rows), np.random.default_rng(0), open_only=True)
    assert unruled is not None
    assert unruled.columns["about"].to_pylist() == [["3"]]
    assert "```text\nz\n```" in unruled.columns["messages"].to_pylist()[0][0]["content"]


def test_a_reference_is_written_from_all_answers_of_a_group_between_fences() -> None:
    plan = reconcile(answers(), np.random.default_rng(0), template="{question}\n{answers}")
    assert plan is not None
    assert plan.columns["about"].to_pylist() == [["0", "1", "2"]]  # of b one answer failed
    (asked,) = [each[0]["content"] for each in plan.columns["messages"].to_pylist()]
    assert asked == "a?\n```text\nx\n```\n\n```text\n{first}\n```\n\n```text\nz\n```"
    assert plan.columns["role"].to_pylist() == ["anchor"]
    ours = reconcile(answers(), np.random.default_rng(0))
    assert ours is not None
    assert "a?" not in ours.columns["messages"].to_pylist()[0][0]["content"]


def test_answers_that_are_those_of_their_reference_are_rewarded() -> None:
    table = pa.table(
        {
            "rollout_id": ["a0", "a1", "a2", "b0", "b1", "c0", "ra", "rb"],
            "problem_id": list("aaabbcab"),
            "group": [0, 0, 0, 1, 1, 2, 3, 4],
            "extracted": ["0.5", "7", None, "7", "8", "9", "1/2", None],
            "use": [None] * 6 + ["reference"] * 2,
            "about": [None] * 6 + [["a0", "a1", "a2"], ["b0", "b1"]],
        }
    )
    found = same_as_reference(BatchRows(of_use(table, LEARN), beside=table))
    assert found["reward"].tolist() == pytest.approx([1.0, 0.0, 0.0, np.nan, np.nan, np.nan], nan_ok=True)
    assert found["referred_frac"].tolist() == [True] * 3 + [False] * 3


def test_a_critique_is_of_the_first_wrong_answers_of_each_group() -> None:
    plan = critique(answers(), np.random.default_rng(0), role="critic", template="{question} {answer}")
    assert plan is not None
    assert plan.columns["about"].to_pylist() == [["0"], ["3"]]
    assert [each[0]["content"] for each in plan.columns["messages"].to_pylist()] == ["a? x", "b? u"]
    both = critique(answers(), np.random.default_rng(0), most=2)
    assert both is not None
    assert both.columns["about"].to_pylist() == [["0"], ["1"], ["3"]]


def test_the_wave_refine_writes_an_answer_anew_after_its_critique_and_it_joins_its_group() -> None:
    rows = pa.table(
        {
            "rollout_id": ["a0", "a1", "c0", "c1", "c2"],
            "problem_id": list("aaaaa"),
            "group": [0, 0, 1, 2, 3],
            "completion": ["x", "y", "no x", None, "gone"],
            "problem.question": ["a?"] * 5,
            "problem.messages": pa.nulls(5),
            "use": [None, None, *["critique"] * 3],
            "about": [None, None, ["a1"], ["a0"], ["b0"]],
        }
    )
    plan = refine(round_of(rows), np.random.default_rng(0), n=2, template="{question} {answer} {critique}")
    assert plan is not None
    found = {name: values.to_pylist() for name, values in plan.columns.items()}
    assert found["messages"] == [[{"role": "user", "content": "a? y no x"}]]
    assert (found["group"], found["trained_prompt"], found["origin"], found["n"]) == (
        ["0"],
        ["problem"],
        ["refined"],
        [2],
    )
    assert "use" not in found
    nothing = refine(answers(), np.random.default_rng(0))
    assert nothing is not None
    assert nothing.num_rows == 0
