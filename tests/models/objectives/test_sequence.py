"""GSPO, its token form, GMPO and SSPO against hand calculations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.components.rows import Marks
from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.losses.sequence import gmpo, gspo, gspo_token, sspo
from gradus.models.objectives.rows import Rows
from tests.models.objectives.ratios import Loss, gradient, logs, view

LOG_RATIOS = [0.2, 0.0, -0.3]
"""Of each token; the rows' means are 0.1 and -0.3."""


def rows(advantages: list[float]) -> tuple[Rows, torch.Tensor]:
    old = torch.full((3,), -1.0, dtype=torch.float64)
    logp = (old + torch.tensor(LOG_RATIOS, dtype=torch.float64)).requires_grad_()
    advantage = torch.tensor(advantages, dtype=torch.float64)[torch.tensor([0, 0, 1])]
    return Rows({}, {"now.logp": logp, "old.logp": old, "advantage": advantage}, torch.tensor([2, 1])), logp


@pytest.mark.parametrize(
    ("advantages", "clip", "losses", "gradient"),
    [
        # Within the bounds: L_i = -s_i A_i, whose gradient is -s_i A_i / |o_i| for each token of the mean over tokens.
        ([1.0, -1.0], 0.5, [-math.exp(0.1), math.exp(-0.3)], [-math.exp(0.1) / 2, -math.exp(0.1) / 2, math.exp(-0.3)]),
        # The paper's bounds: both completions are clipped whole, so neither has a gradient.
        ([1.0, -1.0], None, [-1.0004, 0.9997], [0.0, 0.0, 0.0]),
        # Outside the bounds, but where the surrogate is lower without them.
        ([-1.0, 1.0], None, [math.exp(0.1), -math.exp(-0.3)], [math.exp(0.1) / 2, math.exp(0.1) / 2, -math.exp(-0.3)]),
    ],
)
def test_gspo_has_the_loss_and_gradient_of_whole_completions(
    advantages: list[float], clip: float | None, losses: list[float], gradient: list[float]
) -> None:
    view, logp = rows(advantages)
    bounds = {} if clip is None else {"clip_low": clip, "clip_high": clip}
    loss, _ = gspo(view, **bounds)
    assert loss.tolist() == pytest.approx([losses[0], losses[0], losses[1]])
    view.row_mean(loss).sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx(gradient)


def test_gspo_counts_clipped_completions_by_their_tokens() -> None:
    view, _ = rows([1.0, -1.0])
    _, metrics = gspo(view)
    assert metrics["clip_frac_high"].tolist() == [1, 1, 0]
    assert metrics["clip_frac_low"].tolist() == [0, 0, 1]


@given(
    st.lists(
        st.tuples(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=4), st.floats(-2, 2)), min_size=1, max_size=4
    )
)
@settings(max_examples=30)
def test_gspo_token_has_the_gradient_of_gspo(drawn: list[tuple[list[float], float]]) -> None:
    lengths = [len(each) for each, _ in drawn]
    of_tokens = [advantage for each, advantage in drawn for _ in each]
    view_, now = view([ratio for each, _ in drawn for ratio in each], of_tokens, lengths)
    of_rows, of_token = gspo(view_, clip_low=0.1, clip_high=0.2), gspo_token(view_, clip_low=0.1, clip_high=0.2)
    assert of_token[0].tolist() == pytest.approx(of_rows[0].tolist(), abs=1e-12)
    slopes = [gradient(view_.row_mean(loss), now) for loss, _ in (of_rows, of_token)]
    assert slopes[1] == pytest.approx(slopes[0], abs=1e-12)


def test_gspo_token_lets_tokens_differ_in_advantage() -> None:
    # Ratio of the completion e^0.1 for both; each token has its own advantage and the gradient of its own log-prob.
    view_, now = view([0.2, 0.0], [2, -1])
    loss, _ = gspo_token(view_, clip_low=0.5, clip_high=0.5)
    assert loss.tolist() == pytest.approx([-2 * math.exp(0.1), math.exp(0.1)])
    assert gradient(loss, now) == pytest.approx(loss.tolist())


def test_gmpo_clips_tokens_before_the_mean() -> None:
    # A > 0: 1 is clipped to 0.4, -1 is not, so exp((0.4 - 1) / 2); A < 0: 1 is not, -1 is clipped to -0.4.
    view_, now = view([1.0, -1.0, 9.0, 1.0, -1.0], [2, 2, 2, -1, -1], [3, 2], mask=[True, True, False, True, True])
    loss, metrics = gmpo(view_)
    right, wrong = math.exp(-0.3), math.exp(0.3)
    assert loss.tolist() == pytest.approx([-2 * right] * 3 + [wrong] * 2)
    assert gradient(loss, now, view_.mask) == pytest.approx([0, -2 * right, 0, wrong, 0])
    assert metrics["clip_frac_high"][view_.mask].tolist() == [1, 0, 0, 0]
    assert metrics["clip_frac_low"].tolist() == [0, 0, 0, 0, 1]


@given(st.lists(st.tuples(st.floats(0.2, 4.0), st.floats(-2, 2)), min_size=1, max_size=5))
@settings(max_examples=30)
def test_completions_of_one_token_have_the_loss_of_the_clip(pairs: list[tuple[float, float]]) -> None:
    view_, now = view(logs([ratio for ratio, _ in pairs]), [advantage for _, advantage in pairs], [1] * len(pairs))
    expected = clip(view_, clip_low=0.2, clip_high=0.28)[0]
    slope = gradient(expected, now)
    for loss in (
        gspo(view_, clip_low=0.2, clip_high=0.28)[0],
        gspo_token(view_, clip_low=0.2, clip_high=0.28)[0],
        gmpo(view_, log_low=-math.log(0.8), log_high=math.log(1.28))[0],
        sspo(view_, clip_low=0.2, clip_high=0.28)[0],
    ):
        assert loss.tolist() == pytest.approx(expected.tolist(), abs=1e-12)
        assert gradient(loss, now) == pytest.approx(slope, abs=1e-12)


def sentence_marks(*places: tuple[int, int, int]) -> Marks:
    row, start, end = (torch.tensor(each, dtype=torch.int64) for each in zip(*places, strict=True))
    return Marks(row, start, end, torch.full((len(places),), torch.nan).double(), np.array([None] * len(places)))


def test_sspo_clips_sentences_by_their_entropy() -> None:
    # Row 0: sentences of two and one tokens, and one token behind them, which is a part of its own; row 1 is unmarked,
    # and its second token does not count.
    marks = sentence_marks((0, 0, 2), (0, 2, 3))
    view_, now = view(
        [0.1, 0.3, 0.3, -0.1, 0.2, 7.0],
        [1.0, 1.0, 1.0, 1.0, -1.0, -1.0],
        [4, 2],
        mask=[True] * 5 + [False],
        entropy=[2.0, 4.0, 0.2, 1.8, 1.0, 9.0],
        marks=marks,
    )
    loss, metrics = sspo(view_, clip_low=0.1, clip_high=0.2, spread=2.0)
    # Mean entropy of row 0 is 2; of its parts 3, 0.2 and 1.8, so factors 1.5, 1/2 (0.1 is cut) and 0.9.
    first = math.exp(0.2)
    assert loss[:5].tolist() == pytest.approx([-first, -first, -1.1, -math.exp(-0.1), math.exp(0.2)])
    assert gradient(loss, now, view_.mask) == pytest.approx([-first, -first, 0, -math.exp(-0.1), math.exp(0.2), 0])
    assert metrics["clip_frac_high"][:5].tolist() == [0, 0, 1, 0, 0]
    turned = sspo(view_.select(torch.tensor([1, 0])), clip_low=0.1, clip_high=0.2, spread=2.0)[0]
    assert turned.tolist() == pytest.approx([*loss[4:].tolist(), *loss[:4].tolist()])
    narrow = sspo(view_, clip_low=0.1, clip_high=0.2, spread=1.0)[0]
    assert narrow[:3].tolist() == pytest.approx([-1.2, -1.2, -1.2])


def test_sspo_of_one_sentence_a_completion_is_gspo() -> None:
    view_, _ = view([0.2, 0.1, -0.4], [1, 1, -1], [2, 1], entropy=[0.0, 3.0, 0.0], marks=sentence_marks((0, 0, 2)))
    assert sspo(view_)[0].tolist() == pytest.approx(gspo(view_, clip_low=0.04, clip_high=0.05)[0].tolist())


@pytest.mark.parametrize("loss", [gspo, gspo_token, gmpo, sspo])
def test_a_row_without_tokens_or_without_counted_ones_changes_nothing(loss: Loss) -> None:
    alone, _ = view([0.2, 0.1], [1, 1])
    among, _ = view([0.2, 0.1, 5.0], [1, 1, -1], [0, 2, 1, 0], mask=[True, True, False])
    assert loss(among)[0][:2].tolist() == pytest.approx(loss(alone)[0].tolist())
    assert loss(view([], [], [0, 0])[0])[0].tolist() == []
