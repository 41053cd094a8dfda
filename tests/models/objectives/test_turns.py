"""Advantages and a mean by turns, on rows of turns made by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gradus.components.rows import Marks
from gradus.models.objectives.advantages.group_relative import grpo
from gradus.models.objectives.advantages.tokens.turns import gigpo, m_grpo, salt
from gradus.models.objectives.aggregations.means import sequence_mean
from gradus.models.objectives.aggregations.turns import turn_mean
from gradus.models.objectives.rows import Rows

NAN = float("nan")
Turn = tuple[int, int, float, str | None]


def rows(
    rewards: list[float], lengths: list[int], turns: list[list[Turn]], groups: list[int], mask: Tensor | None = None
) -> Rows:
    """Rows with turns (start, end, value, label) each; no tokens but their number."""
    flat = [(row, *turn) for row, each in enumerate(turns) for turn in each]
    starts, ends = (torch.tensor([each[i] for each in flat], dtype=torch.int64) for i in (1, 2))
    row = torch.tensor([each[0] for each in flat], dtype=torch.int64)
    value = torch.tensor([each[3] for each in flat], dtype=torch.float64)
    label = np.array([each[4] for each in flat], dtype=np.object_)
    return Rows(
        {"reward": torch.tensor(rewards, dtype=torch.float64), "group": torch.tensor(groups)},
        {"sampler.logp": torch.zeros(sum(lengths))},
        torch.tensor(lengths),
        mask,
        {"marks.turn": Marks(row, starts, ends, value, label)},
    )


def test_gigpo_by_hand() -> None:
    # Outcome 1 and 0 after two turns each from state a; the first goes to b, the second back to a. G = gamma, 1 and
    # 0, 0. State a is seen with G = 0.5, 0, 0: mean 1/6, std sqrt(1/12); b once.
    step = rows(
        [1, 0, 1],
        [5, 3, 2],
        [[(0, 2, NAN, "a"), (3, 5, NAN, "b")], [(2, 3, NAN, "a"), (0, 2, NAN, "a")], [(0, 2, NAN, "a")]],
        [0, 0, 1],
    )
    episode, std = math.sqrt(0.5), math.sqrt(1 / 12)
    found = gigpo(step, gamma=0.5, share=2.0, std_eps=0.0)
    first = episode + 2 * (1 / 3) / std
    expected = [first, first, episode, episode, episode, *[-episode + 2 * (-1 / 6) / std] * 3, 0, 0]
    assert found.tolist() == pytest.approx(expected)
    flat = gigpo(step, gamma=0.5, divide=False)
    assert flat.tolist() == pytest.approx([0.5 + 1 / 3] * 2 + [0.5] * 3 + [-0.5 - 1 / 6] * 3 + [0, 0])


def test_gigpo_takes_the_rewards_of_turns_where_there_are_any() -> None:
    # G of the first row: 2 + 0.5 * 3 = 3.5 and 3; of the second 4 and nothing behind it. State a: 3.5, 4; z: 3.
    turns: list[list[Turn]] = [[(1, 2, 3.0, "z"), (0, 1, 2.0, "a")], [(0, 1, 4.0, "a")], [(0, 1, 9.0, "a")]]
    step = rows([1, 0, NAN], [2, 1, 1], turns, [0, 0, 0])
    assert gigpo(step, gamma=0.5, divide=False).tolist() == pytest.approx([0.5 - 0.25, 0.5, -0.5 + 0.25, 0])
    # Two turns without a label are in no common state.
    alone = rows([1, 0], [1, 1], [[(0, 1, NAN, None)], [(0, 1, NAN, None)]], [0, 0])
    assert gigpo(alone).tolist() == pytest.approx(grpo(alone, std_eps=1e-6).tolist())


def test_salt_pools_the_turns_that_rows_share_by_hand() -> None:
    # A = 2/3, -1/3, -1/3 over sqrt(1/3). Edge x is in the first (twice) and the second row, y in the third alone; in
    # another group x is another edge.
    step = rows(
        [1, 0, 0, 1, 0, NAN],
        [3, 2, 1, 1, 1, 1],
        [
            [(0, 1, NAN, "x"), (1, 2, NAN, "x")],
            [(0, 1, NAN, "x")],
            [(0, 1, NAN, "y")],
            [(0, 1, NAN, "x")],
            [],
            [(0, 1, NAN, "x")],
        ],
        [0, 0, 0, 1, 1, 0],
    )
    std = math.sqrt(1 / 3)
    pooled, own = (2 / 3 - 1 / 3) / 2 / std, [2 / 3 / std, -1 / 3 / std]
    expected = [pooled, pooled, own[0], pooled, own[1], own[1], 0.5**0.5, -(0.5**0.5), 0]
    assert salt(step, std_eps=0.0).tolist() == pytest.approx(expected)
    none = rows([1, 0], [1, 2], [[], []], [0, 0])
    for method in (salt, m_grpo, gigpo):
        assert method(none).tolist() == pytest.approx([0.5**0.5] + [-(0.5**0.5)] * 2, abs=2e-4)


def test_m_grpo_compares_a_sub_agent_with_itself_by_hand() -> None:
    # Main rewards 1 and 0. The searcher's parts have 3, 1, 2: mean 2, std 1; the coder's one has nothing to compare.
    step = rows(
        [1, 0],
        [4, 4],
        [
            [(0, 1, NAN, None), (1, 2, 3.0, "search"), (2, 3, 1.0, "search")],
            [(1, 2, 2.0, "search"), (2, 3, 9.0, "code")],
        ],
        [0, 0],
    )
    main = 0.5**0.5
    assert m_grpo(step, std_eps=0.0).tolist() == pytest.approx([main, 1, -1, main, -main, 0, 0, -main])


def test_every_turn_weighs_the_same_by_hand() -> None:
    # Two rows with tokens: the first has turns of two and of one token, and one token outside; the second has none.
    turns: list[list[Turn]] = [[(0, 2, NAN, None), (3, 4, NAN, None)], [], []]
    step = rows([1, 0, 0], [4, 2, 0], turns, [0, 0, 0])
    assert turn_mean(step).tolist() == pytest.approx([1 / 8, 1 / 8, 0, 1 / 4, 1 / 4, 1 / 4])
    # A masked token belongs to no turn; a turn of masked tokens alone is none.
    mask = torch.tensor([True, False, True, False, True, True])
    masked = rows([1, 0, 0], [4, 2, 0], turns, [0, 0, 0], mask)
    assert turn_mean(masked).tolist() == pytest.approx([1 / 2, 0, 0, 0, 1 / 4, 1 / 4])
    whole = rows([1, 0, 0], [4, 2, 0], [[(0, 4, NAN, None)], [(0, 2, NAN, None)], []], [0, 0, 0])
    assert turn_mean(whole).tolist() == pytest.approx(sequence_mean(whole).tolist())
