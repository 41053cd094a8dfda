"""The rewards as pure functions: where the answer stands, exact text, formats, own functions, names and sums."""

import re
from fractions import Fraction

import numpy as np
import pytest

from gradus.models.rewards import resolve, user
from gradus.models.rewards.base import Verdict
from gradus.models.rewards.combine import combine, component_names, deciding_reward
from gradus.models.rewards.judges import exact, pattern
from gradus.models.rewards.text import last_box, last_marked, visible_text

# --- where the answer stands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "visible"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("<think>a</think>b</think>c", "c"),
        ("no opening tag</think>c", "c"),
        ("<THINK>a</Think>b", "b"),
        ("<think>never closed 34", None),
        ("<think>a</think>b<think>c", None),
        ("", ""),
    ],
)
def test_only_what_follows_the_thinking_is_visible(completion, visible):
    assert visible_text(completion) == visible


def test_long_text_is_cut_after_the_thinking_was_removed():
    assert visible_text("<think>" + "x" * 100 + "</think>abcdef", max_chars=3) == "def"
    assert visible_text("<think>" + "x" * 100, max_chars=3) is None


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{3} then \boxed{4}", "4"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\left\{1\right.}", r"\left\{1\right."),
        (r"\fbox{7}", "7"),
        (r"\boxed 2$", "2"),
        (r"\boxed{}", ""),
        (r"\boxed{ }", ""),
        (r"\boxed{3} \boxed{", ""),
        (r"\boxed{3", ""),
        (r"\boxedfoo{3}", None),
        ("no box", None),
    ],
)
def test_the_last_box_counts(text, box):
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("#### 1\n#### 2\n", "2"),
        ("#### 2 #### 3", "3"),
        ("7-5=2\n#### ", ""),
        ("#### Step 3\nso 5", None),
        ("#### 1. Add the prices\nso 5", None),
        ("#### **Answer**\n5", None),
        ("##### -7", "-7"),
        ("### 5", None),
    ],
)
def test_the_last_marker_that_is_no_heading_counts(text, marked):
    assert last_marked(text) == marked


# --- exact, format, a user's function --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "gold", "expected"),
    [
        ("so\n#### New  York.\n", "new york", "correct"),
        ("#### Step one\nParis", "Paris", "correct"),
        (r"\boxed{New  York.}", "new york", "correct"),
        ("I think the answer is: Paris.", "paris", "correct"),
        ("some thinking\nParis", "Paris", "correct"),
        (r"\boxed{\text{B}}", "B", "correct"),
        (r"\boxed{1200}", "1,200", "wrong"),
        (r"\boxed{\uff22}".replace(r"\uff22", "\uff22"), "B", "correct"),
        (r"\boxed{}", "B", "unparsed"),
        ("<think>B", "B", "unparsed"),
        ("\n \n", "B", "unparsed"),
        ("B", " . ", "error"),
    ],
)
def test_exact(completion, gold, expected):
    assert exact.judge({"completion": completion}, gold, 0).outcome == expected


@pytest.mark.parametrize(
    ("completion", "regex", "value"),
    [
        ("#### 3", "", 1.0),
        (r"\boxed{3}", "", 1.0),
        (r"\boxed{}", "", 0.0),
        ("3", "", 0.0),
        (r"<think>\boxed{3}", "", 0.0),
        ("<think>a\nb</think>c", "^<think>.*</think>", 1.0),
        ("c", "^<think>.*</think>", 0.0),
    ],
)
def test_format(completion, regex, value):
    verdict = pattern.judge({"completion": completion}, "", 0, pattern=regex)
    assert verdict == Verdict(value)


def test_a_users_values_are_checked_one_by_one():
    values = [1, True, 0.5, Fraction(1, 4), None, float("nan"), float("inf"), "1", 10**400]
    verdicts = user.judge_batch(lambda rows: values, [{}] * len(values))
    assert [v.value for v in verdicts] == [1.0, 1.0, 0.5, 0.25, None, None, None, None, None]
    assert [v.outcome for v in verdicts] == [""] * 4 + ["error"] * 5
    assert "None" in verdicts[4].error


def test_a_user_may_return_a_value_with_a_verdict():
    answers = [
        {"value": 0.7, "correct": True, "extracted": "34"},
        {"value": 0.7, "correct": np.bool_(False)},
        {"value": 0.0, "correct": None},
        {"value": np.float32(0.25)},
        {"value": None, "correct": True},
    ]
    verdicts = user.judge_batch(lambda rows: answers, [{}] * len(answers))
    assert [v.value for v in verdicts] == [0.7, 0.7, 0.0, 0.25, None]
    assert [v.outcome for v in verdicts] == ["correct", "wrong", "", "", "error"]
    assert [v.abstains for v in verdicts] == [False, False, True, False, False]
    assert verdicts[0].extracted == "34"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"value": 0.7, "corect": True}, "the key 'corect': the keys are value, correct, extracted"),
        ({"correct": True}, "a mapping without the key 'value'"),
        ({"value": 1.0, "correct": "yes"}, "'yes' as 'correct', not True, False or None"),
        ({"value": 1.0, "correct": 1}, "1 as 'correct', not True, False or None"),
        ({"value": 1.0, "extracted": 34}, "int as 'extracted', not text"),
        ({"value": "1"}, "str, not a number"),
        ({"value": float("nan"), "correct": True}, "returned nan"),
    ],
)
def test_a_mapping_that_cannot_be_read_is_an_error_on_its_row_alone(answer, said):
    bad, good = user.judge_batch(lambda rows: [answer, {"value": 1.0}], [{}, {}])
    assert (bad.value, bad.outcome, good.value) == (None, "error", 1.0)
    assert said in bad.error


@pytest.mark.parametrize("returned", [[1.0], 1.0, None, {"a": 1}, "11"])
def test_a_users_answer_of_another_shape_is_refused(returned):
    with pytest.raises(user.BatchRefusedError):
        user.judge_batch(lambda rows: returned, [{}, {}])


# --- names and sums --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given_settings", "said"),
    [
        ("maths", {}, "there is no reward 'maths'"),
        ("numeric", {"units": 1}, "Extra inputs"),
        ("format", {"pattern": "("}, "not a regular expression"),
    ],
)
def test_an_unknown_name_or_setting_says_what_there_is(name, given_settings, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        resolve(name, given_settings)


def test_components_have_short_unique_names():
    chosen = ["numeric", "format", "format", "x/a.py:f", "y/b.py:f"]
    assert component_names([resolve(n, {}) for n in chosen]) == ["numeric", "format", "format_2", "f", "f_2"]


@pytest.mark.parametrize(
    ("names", "deciding"),
    [
        (["format", "exact", "numeric"], 1),
        (["a.py:f", "math"], 1),
        (["format", "a.py:f"], 1),
        (["a.py:f", "a.py:g"], None),
        (["format"], None),
    ],
)
def test_which_reward_says_correct(names, deciding):
    assert deciding_reward([resolve(n, {}) for n in names]) == deciding


def test_the_reward_is_the_weighted_sum_and_null_where_a_part_failed():
    names, weights = ["numeric", "format"], [1.0, 0.25]
    good = combine(names, weights, [Verdict(1.0, "correct", "5"), Verdict(1.0)], 0)
    assert (good.reward, good.correct, good.outcome, good.extracted) == (1.25, True, "correct", "5")
    bad = combine(names, weights, [Verdict(1.0, "correct", "5"), Verdict(None, "timeout", None, "slow")], 0)
    assert (bad.reward, bad.correct, bad.outcome) == (None, None, "timeout")
    assert bad.components == {"numeric": 1.0}
    assert bad.error == "format: slow"
    unread = combine(names, weights, [Verdict(0.0, "unparsed"), Verdict(0.0)], 0)
    assert (unread.reward, unread.correct, unread.outcome) == (0.0, False, "unparsed")


def test_a_sum_that_overflows_is_a_failure_and_no_reward():
    score = combine(["f", "g"], [10.0, 1.0], [Verdict(1e308, "correct"), Verdict(0.5)], 0)
    assert (score.reward, score.correct, score.outcome) == (None, None, "error")
    assert score.error == "the weighted sum of the rewards is inf"
    assert score.components == {"f": 1e308, "g": 0.5}


def test_a_chosen_reward_decides_before_all_others():
    assert deciding_reward([resolve(n, {}) for n in ("math", "a.py:f")], chosen=1) == 1


GRADED = Verdict(0.7)


@pytest.mark.parametrize(
    ("verdicts", "deciding", "correct_at", "correct"),
    [
        ([GRADED], 0, 0.7, True),  # at the threshold
        ([GRADED], 0, 0.71, False),
        ([GRADED], 0, None, None),
        ([Verdict(1.0)], 0, 1.5, False),  # a stated threshold stands before 1 and 0
        ([Verdict(0.9, "wrong")], 0, 0.5, False),  # a verdict stands before a threshold
        ([Verdict(0.1, "correct")], 0, 0.5, True),
        ([Verdict(1.0, abstains=True)], 0, 0.5, None),  # who abstains is decided by nothing
        ([Verdict(0.0, abstains=True)], 0, None, None),
        ([Verdict(1.0), GRADED], 1, 0.8, False),  # of the deciding reward, not of the sum 1.7
        ([Verdict(1.0), GRADED], None, 1.6, True),  # of the sum where none decides: 1.0 + 0.7
        ([Verdict(1.0), GRADED], None, 1.8, False),
        ([Verdict(1.0), GRADED], None, None, None),
        ([GRADED, Verdict(None, "error")], 0, 0.5, None),  # a part that failed leaves no verdict
    ],
)
def test_what_is_correct_is_the_verdict_else_the_threshold(verdicts, deciding, correct_at, correct):
    names = ["f", "g"][: len(verdicts)]
    assert combine(names, [1.0] * len(names), verdicts, deciding, correct_at).correct is correct


@pytest.mark.parametrize(("value", "correct", "said"), [(1.0, True, "correct"), (0.0, False, "wrong"), (0.5, None, "")])
def test_a_lone_function_claims_correctness_only_by_one_and_zero(value, correct, said):
    score = combine(["f"], [2.0], [Verdict(value)], 0)
    assert (score.reward, score.correct, score.outcome) == (2 * value, correct, said)


def test_a_reward_of_other_rows_has_no_part_in_the_sum():
    names, weights = ["math", "boxes"], [2.0, 3.0]
    alone = combine(names, weights, [None, Verdict(0.5)], None, 0.4)
    assert (alone.reward, alone.correct, alone.components) == (1.5, True, {"boxes": 0.5})
    both = combine(names, weights, [Verdict(1.0, "correct"), Verdict(0.5)], 0)
    assert (both.reward, both.correct) == (3.5, True)
    none = combine(names, weights, [None, None], None)
    assert (none.reward, none.outcome, none.error) == (None, "error", "no reward judges this kind of problem")
