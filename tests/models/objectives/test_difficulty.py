"""Advantages that depend on the difficulty of a group, by hand, against SciPy and a plain form."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gradus.models.objectives.advantages.difficulty import bnpo, dgpo, maxrl, univg_r1
from gradus.models.objectives.advantages.group_relative import dr_grpo, grpo
from gradus.models.objectives.rows import Rows

NAN = math.nan
ALL = {f.__name__: f for f in (bnpo, dgpo, maxrl, univg_r1)}
ROWS = st.lists(st.tuples(st.sampled_from([0.0, 1.0, NAN]), st.integers(0, 3)), min_size=1, max_size=20)


def batch(
    reward: list[float],
    group: list[int] | None = None,
    *,
    correct: list[float] | None = None,
) -> Rows:
    return Rows(
        {
            "reward": torch.tensor(reward, dtype=torch.float64),
            "correct": torch.tensor(correct or reward, dtype=torch.float64),
            "group": torch.tensor(group or [0] * len(reward)),
        }
    )


FOUR = ([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0], [0, 0, 0, 0, 1, 1, 2, 2, 2])
"""Groups of means 1/4, 1/2 and 1."""


def test_bnpo_with_given_parameters() -> None:
    scored = batch(*FOUR)
    assert bnpo(scored, alpha=1.0, beta=1.0).tolist() == dr_grpo(scored).tolist()
    # Beta(2, 2) has the density 6 p (1 - p): 9/8 at 1/4, 3/2 at 1/2.
    found = bnpo(scored, alpha=2.0, beta=2.0)
    assert found[:6].tolist() == pytest.approx([2 / 3, -2 / 9, -2 / 9, -2 / 9, 1 / 3, -1 / 3])
    # Beta(3/2, 3/2) has 8 / pi sqrt(p (1 - p)).
    root = math.pi / 8 / math.sqrt(3 / 16)
    assert bnpo(scored, alpha=1.5, beta=1.5)[:2].tolist() == pytest.approx([0.75 * root, -0.25 * root])
    # A density of almost 0 at 1/4: the weight is cut.
    assert bnpo(scored, alpha=200.0, beta=1.0)[0].item() == 0.75e6


def test_bnpo_fits_its_parameters_to_the_groups() -> None:
    # Means 1/4, 1/2, 3/4: m = 1/2, v = 1/16 (ddof 1): a = b = (4 - 1) / 2 = 3/2, so that both parameters are 3/2.
    scored = batch([1, 0, 0, 0, 1, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    assert bnpo(scored).tolist() == pytest.approx(bnpo(scored, alpha=1.5, beta=1.5).tolist())
    # Means 0, 1/2, 1/2: m = 1/3, v = 1/12: m (1 - m) / v - 1 = 5/3, a = 5/9, b = 10/9.
    uneven = batch([0, 0, 1, 0, 1, 0], [0, 0, 1, 1, 2, 2])
    weight = 1 / stats.beta.pdf(0.5, 1 + 5 / 27, 1 + 10 / 27)
    assert bnpo(uneven).tolist() == pytest.approx([0, 0, *[0.5 * weight, -0.5 * weight] * 2])
    # One group, groups of equal means, and means that are spread to both ends: Beta(1, 1).
    ends = batch([0, 0, 1, 1, 1, 0], [0, 0, 1, 1, 2, 2])  # 0, 1, 1/2: v = 1/4 = m (1 - m)
    for plain in (batch([1, 0]), batch([1, 0, 1, 0], [0, 0, 1, 1]), ends):
        assert bnpo(plain).tolist() == dr_grpo(plain).tolist()
    # Rewards of -1 and 1, as 0 and 1.
    shifted = batch([1, -1, -1, -1, 1, -1, 1, 1, 1, -1], [0, 0, 0, 0, 1, 1, 2, 2, 2, 2])
    assert bnpo(shifted, min_reward=-1.0, reward_span=2.0).tolist() == pytest.approx(bnpo(scored).tolist())


def test_maxrl_divides_by_the_mean() -> None:
    # 3/4 over 1/4, -1/4 over 1/4; 1/2 over 1/2; a constant group, and one whose mean is not above 0.
    found = maxrl(batch([*FOUR[0], 0, -1], [*FOUR[1], 3, 3]), mean_eps=0.0)
    assert found.tolist() == [3, -1, -1, -1, 1, -1, 0, 0, 0, 0, 0]
    assert maxrl(batch([1, 0, 0, 0]), mean_eps=0.25)[:2].tolist() == [1.5, -0.5]


def test_dgpo_by_hand() -> None:
    # Deviations 3/4, 1/4 three times: 3/8 each on average; 1/2 each in group 1. Without weights: 2, -2/3; 1, -1.
    scored = batch(*FOUR)
    plain = [2, -2 / 3, -2 / 3, -2 / 3, 1, -1, 0, 0, 0]
    assert dgpo(scored, temperature=0.0, mad_eps=0.0).tolist() == pytest.approx(plain)
    assert dgpo(scored, temperature=0.0, mad_eps=0.5)[0].item() == pytest.approx(4 * 0.75 / 2)
    # Two groups vary, of accuracy 1/4 and 1/2: weights 2 / (1 + exp(-1/8)) and 2 / (1 + exp(1/8)) at temperature 2.
    hard, easy = 2 / (1 + math.exp(-1 / 8)), 2 / (1 + math.exp(1 / 8))
    found = dgpo(scored, mad_eps=0.0).tolist()
    assert found == pytest.approx([*(hard * value for value in plain[:4]), easy, -easy, 0, 0, 0])


def test_dgpo_takes_a_varied_group_without_a_right_row_for_an_easy_one() -> None:
    scored = batch([0.5, 0, 1, 0], [0, 0, 1, 1], correct=[0, 0, 1, 0])
    # Accuracies 1 (none right) and 1/2 at temperature 1.
    low, high = 2 / (1 + math.exp(0.5)), 2 / (1 + math.exp(-0.5))
    assert dgpo(scored, temperature=1.0, mad_eps=0.0).tolist() == pytest.approx([low, -low, high, -high])
    assert dgpo(batch([1, 1, 0], [0, 0, 1])).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("form", "quarter", "half"),
    [("exp", math.exp(0.75), math.exp(0.5)), ("log", -math.log(0.27), -math.log(0.52)), ("power", 0.64, 0.3025)],
)
def test_univg_r1_weighs_grpo(form: str, quarter: float, half: float) -> None:
    found = univg_r1(batch(*FOUR), form=form, power=2.0, std_eps=0.0).tolist()  # pyright: ignore[reportArgumentType]
    # Group 0: 3/4 and -1/4 over 1/2; group 1: +-1/2 over sqrt(1/2).
    root = math.sqrt(0.5)
    wanted = [1.5 * quarter, *[-0.5 * quarter] * 3, root * half, -root * half, 0, 0, 0]
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize("form", ["log", "power"])
def test_no_weight_of_univg_r1_is_below_zero(form: str) -> None:
    assert univg_r1(batch([2, 1]), form=form).tolist() == [0, 0]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ALL)
def test_rows_without_a_reward_count_nowhere(name: str) -> None:
    alone = ALL[name](batch([1, 0, 0, 0, 1], [0, 0, 0, 1, 1]))
    others = batch([1, 0, NAN, 0, NAN, 0, 1, NAN, NAN], [0, 0, 0, 0, 0, 1, 1, 2, 3])
    found = ALL[name](others)
    assert found[[0, 1, 3, 5, 6]].tolist() == pytest.approx(alone.tolist())
    assert (found[[2, 4, 7, 8]].tolist(), found.dtype) == ([0.0] * 4, torch.float64)
    assert alone.abs().sum() > 1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("reward", [[0.1, 0.1, 0.1], [0.0, 0.0], [1.0, 1.0], [NAN, NAN], [0.7]])
def test_equal_rewards_or_none_have_exactly_nothing(name: str, reward: list[float]) -> None:
    assert ALL[name](batch(reward)).tolist() == [0.0] * len(reward)


@pytest.mark.parametrize("name", ALL)
@given(rows=ROWS, data=st.data())
@settings(max_examples=40)
def test_properties(name: str, rows: list[tuple[float, int]], data: st.DataObject) -> None:
    """All are GRPO's of the row times a factor of its group at least 0, whatever the order of the rows."""
    order = data.draw(st.permutations(range(len(rows))))
    scored = batch([r for r, _ in rows], [g for _, g in rows])
    found = ALL[name](scored)
    assert scored.by("group").sum(found).abs().max().item() < 1e-6
    assert torch.equal(found.sign(), grpo(scored).sign())
    assert ALL[name](scored.select(torch.tensor(order))).tolist() == pytest.approx(found[list(order)].tolist())
