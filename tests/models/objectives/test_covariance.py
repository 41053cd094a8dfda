"""Clip-Cov, KL-Cov and STEER by hand, and KL-Cov's two terms against its loss in one piece."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gradus.models.objectives.losses.clipped import clip
from gradus.models.objectives.losses.regularising.held import abs_log_ratio
from gradus.models.objectives.rows import Rows
from gradus.models.objectives.weights.covariance import clip_cov, kl_cov, steer

ADVANTAGE = [2.0, 2.0, -1.0, -1.0, 50.0]
LOGP = [-1.0, -3.0, -1.0, -3.0, 0.0]
"""Of the first four tokens mean A is 1/2 and mean log pi -2: C is 3/2, -3/2, -3/2, 3/2. The last one is masked."""


def rows(advantage: list[float], logp: list[float], old: list[float] | None = None, **more: Any) -> Rows:
    of_tokens = {
        "advantage": torch.tensor(advantage, dtype=torch.float64),
        "now.logp": torch.tensor(logp),
        "old.logp": torch.tensor(old or logp),
    }
    if "entropy" in more:
        of_tokens["now.entropy"] = torch.tensor(more["entropy"])
    lengths = torch.tensor(more.get("lengths", [len(logp), 0]))
    return Rows({"group": torch.zeros(len(lengths))}, of_tokens, lengths, more.get("mask"))


def masked(*numbers: int, size: int = 5) -> Tensor:
    return torch.tensor([number not in numbers for number in range(size)])


def test_the_covariance_of_counted_tokens_decides_by_hand() -> None:
    step = rows(ADVANTAGE, LOGP, mask=masked(4))
    weight, metrics = kl_cov(step, frac=0.5)
    assert weight.tolist() == [1, 0, 0, 1, 0]
    assert metrics["cov_mean"][:4].tolist() == [1.5, -1.5, -1.5, 1.5]
    assert clip_cov(step, frac=0.5)[0].tolist() == [0, 1, 1, 0, 1]
    one = clip_cov(step, frac=1e-9)[0]  # at least one, drawn from the two
    assert one.tolist() in ([0, 1, 1, 1, 1], [1, 1, 1, 0, 1])
    assert kl_cov(step, frac=1e-9)[0].sum() == 1
    assert len({tuple(clip_cov(step, frac=0.25, seed=seed)[0].tolist()) for seed in range(20)}) == 2
    assert clip_cov(step, frac=1.0, below=1e9)[0].tolist() == [0, 1, 1, 0, 1]  # the masked one has 49.5 * 2
    # The bounds themselves are outside.
    assert clip_cov(step, frac=1.0, above=1.5)[0].tolist() == [1, 1, 1, 1, 1]
    assert clip_cov(step, frac=1.0, above=-5.0, below=-1.5)[0].tolist() == [1, 1, 1, 1, 1]
    assert clip_cov(step, frac=1.0, above=-2.0, below=-1.0)[0].tolist() == [1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("shift", "expected"),
    # A ratio of e^0.5 is above 1.28 and matters where A > 0; one of e^-0.5 is below 0.8 and matters where A < 0.
    [(0.5, [1, 1, 1, 0, 1]), (-0.5, [0, 1, 1, 1, 1]), (0.1, [0, 1, 1, 0, 1])],
)
def test_a_token_that_the_clip_cuts_is_not_drawn(shift: float, expected: list[float]) -> None:
    step = rows(ADVANTAGE, LOGP, [each - shift for each in LOGP], mask=masked(4))
    assert clip_cov(step, frac=1.0, clip_low=0.2, clip_high=0.28)[0].tolist() == expected


def test_equal_advantages_and_no_tokens_at_all() -> None:
    equal = rows([1.0, 1.0, 1.0], [-1.0, -2.0, -3.0], entropy=[1.0, 1.0, 1.0])
    assert clip_cov(equal)[0].tolist() == [1, 1, 1]
    assert kl_cov(equal, frac=0.4)[0].sum() == 1
    nothing = rows([1.0], [-1.0], entropy=[1.0], mask=masked(0, size=1))
    assert (clip_cov(nothing)[0].tolist(), kl_cov(nothing)[0].tolist(), steer(nothing)[0].tolist()) == ([1], [0], [0])
    assert len(kl_cov(rows([], [], lengths=[0]))[0]) == len(steer(rows([], [], lengths=[0], entropy=[]))[0]) == 0


def test_two_terms_have_the_loss_and_gradient_of_kl_cov_in_one_piece() -> None:
    advantage, old = torch.tensor(ADVANTAGE[:4]), torch.tensor([-1.2, -2.9, -1.0, -3.3])
    alone, apart = (torch.tensor(LOGP[:4], requires_grad=True) for _ in range(2))
    # As verl writes it: -A ratio, and at the tokens of largest covariance (0 and 3) also coef |log ratio|.
    held = torch.tensor([1.0, 0.0, 0.0, 1.0])
    loss = (-advantage * (alone - old).exp() + 0.7 * held * (alone - old).abs()).mean()
    loss.backward()
    step = rows(ADVANTAGE[:4], LOGP[:4], old.tolist())
    seen = step.adding(of_tokens={"now.logp": apart, "advantage": advantage})
    terms = clip(seen, clip_low=1.0, clip_high=1e9)[0] + 0.7 * kl_cov(step, frac=0.5)[0] * abs_log_ratio(seen)[0]
    terms.mean().backward()
    assert float(terms.detach().mean()) == pytest.approx(float(loss.detach()))
    assert alone.grad is not None
    assert apart.grad is not None
    assert apart.grad.tolist() == pytest.approx(alone.grad.tolist())


def test_steer_weighs_by_the_change_of_entropy_by_hand() -> None:
    # |Omega|: 0 where log pi = -H; A / pi_old pi (1 - pi) (log pi + H) = 2 * 0.75 * (ln 0.25 + 1) in size; half for
    # half the advantage; half again for a behaviour twice as likely.
    log4, size = math.log(4), 1.5 * (math.log(4) - 1)
    step = rows(
        [3.0, -2.0, 1.0, 1.0, 9.0],
        [-math.log(2), -log4, -log4, -log4, -log4],
        [-math.log(2), -log4, -log4, -math.log(2), -log4],
        entropy=[math.log(2), 1.0, 1.0, 1.0, 1.0],
        mask=masked(4),
    )
    weight, metrics = steer(step)
    assert metrics["entropy_change_mean"][:4].tolist() == pytest.approx([0, size, size / 2, size / 4], abs=1e-6)
    assert weight.tolist() == pytest.approx([1.2, 0.8, 1.0, 1.1, 0.0])
    assert steer(step, form="exponential")[0].tolist() == pytest.approx([1, 0.8, 0.8**0.5, 0.8**0.25, 0])


def test_steer_of_small_or_equal_changes() -> None:
    # Omega = A (1 - pi) (log pi + H) on-policy: 0.01 with A = 0.02, pi = 1/2, H = 1 + ln 2; half of 0.02.
    small = rows([0.02, 0.02], [-math.log(2)] * 2, entropy=[1 + math.log(2)] * 2)
    assert steer(small, form="exponential")[0].tolist() == pytest.approx([0.8**0.5] * 2)
    assert steer(small)[0].tolist() == pytest.approx([1.0, 1.0])
    certain = rows([1.0, 1.0], [0.0, -100.0], entropy=[0.0, 0.0])
    assert bool(torch.isfinite(steer(certain)[0]).all())


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(-5, -0.01), st.floats(0, 4)), min_size=1, max_size=12),
    st.randoms(use_true_random=False),
)
def test_weights_follow_their_tokens_and_stay_within_their_bounds(tokens: list[tuple[float, ...]], random: Any) -> None:
    order = list(range(len(tokens)))
    random.shuffle(order)
    step, other = (
        rows([t[0] for t in each], [t[1] for t in each], entropy=[t[2] for t in each])
        for each in (tokens, [tokens[number] for number in order])
    )
    weight = steer(step)[0]
    assert steer(other)[0].tolist() == pytest.approx([float(weight[number]) for number in order], abs=1e-5)
    assert bool(((weight > 0.8 - 1e-6) & (weight < 1.2 + 1e-6)).all())
    assert float(kl_cov(step, frac=0.3)[0].sum()) == max(1, int(0.3 * len(tokens)))
