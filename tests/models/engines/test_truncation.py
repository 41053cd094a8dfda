"""What top-k and top-p leave of a distribution that the embedded engine samples from."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradus.models.engines.sampling import SamplingParams, _truncated  # pyright: ignore[reportPrivateUsage]


def drawing(*rows: tuple[float, float, int]) -> SamplingParams:
    """Temperature, top_p and top_k of each row."""
    temperature, top_p, top_k = zip(*rows, strict=True)
    return SamplingParams(
        torch.tensor(temperature, dtype=torch.float32)[:, None],
        torch.tensor(top_p, dtype=torch.float64)[:, None],
        torch.tensor(top_k)[:, None],
    )


@pytest.mark.parametrize(
    ("how", "probabilities", "left"),
    [
        ((1.0, 0.7, 0), [0.5, 0.25, 0.15, 0.1], [2 / 3, 1 / 3, 0, 0]),
        ((1.0, 1.0, 3), [0.1, 0.5, 0.15, 0.25], [0, 5 / 9, 1 / 6, 5 / 18]),
        # Top-k first: of what it leaves, 5/9 and 5/18, two reach 0.8; of all four, three would.
        ((1.0, 0.8, 3), [0.5, 0.25, 0.15, 0.1], [2 / 3, 1 / 3, 0, 0]),
        # Equals of the last that top-k takes stay; of equals at top-p's edge the first stays.
        ((1.0, 1.0, 2), [0.4, 0.3, 0.3], [0.4, 0.3, 0.3]),
        ((1.0, 0.6, 0), [0.4, 0.3, 0.3], [4 / 7, 3 / 7, 0]),
        # Greedy rows are recorded at temperature 1 and whole.
        ((0.0, 0.5, 1), [0.5, 0.25, 0.15, 0.1], [0.5, 0.25, 0.15, 0.1]),
    ],
)
def test_what_truncation_leaves_by_hand(
    how: tuple[float, float, int], probabilities: list[float], left: list[float]
) -> None:
    size = len(probabilities)
    logp = torch.tensor([probabilities] * size).log()
    rows = drawing(*[how] * size)
    found = _truncated(logp, rows).diagonal()
    assert found.exp().tolist() == pytest.approx(left, abs=1e-6)
    assert torch.isneginf(found).tolist() == [p == 0 for p in left]


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=12),
    st.floats(0.01, 1.0),
    st.integers(0, 14),
)
def test_what_is_left_sums_to_one_in_the_same_proportions(logits: list[float], top_p: float, top_k: int) -> None:
    logp = torch.log_softmax(torch.tensor([logits] * len(logits)), -1)
    rows = drawing(*[(1.0, top_p, top_k)] * len(logits))
    found, whole = _truncated(logp, rows).diagonal(), logp[0]
    assert float(found.double().exp().sum()) == pytest.approx(1.0, abs=1e-5)
    kept = torch.isfinite(found)
    raised = (found - whole)[kept]
    assert raised.tolist() == pytest.approx([float(raised[0])] * len(raised), abs=1e-5)
    assert float(whole[kept].min()) >= float(whole[~kept].max()) if bool((~kept).any()) else float(raised[0]) < 1e-5
