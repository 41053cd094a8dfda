"""The measure `divergence` against TW-GRPO's sum over a vocabulary, written in torch, and by hand."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from gradus.components.rows import Lists, Rows
from gradus.models.measures.divergence import divergence
from gradus.models.measuring import TargetLogprobs

VOCABULARY = 6


class Known:
    """A model whose distributions are given: (L, V) log-probs for each row."""

    def __init__(self, logp: list[torch.Tensor]) -> None:
        self.logp = logp

    def logprobs(self, contexts: Any, targets: Any, *, top: int) -> TargetLogprobs:
        assert len(contexts) == len(targets) == len(self.logp)
        offsets = np.array([0, *np.cumsum([len(each) for each in self.logp])])
        likely = torch.cat([each.reshape(-1, VOCABULARY) for each in self.logp]).topk(top)
        none = Lists(np.zeros(0), np.zeros(1, np.int64))
        ids, values = (Lists(each.numpy(), offsets) for each in (likely.indices, likely.values))
        return TargetLogprobs(none, none, top_ids=ids, top_logp=values)


def measured(logp: list[torch.Tensor], groups: list[int], k: int) -> list[list[float]]:
    texts = [[1] * len(each) for each in logp]
    rows = Rows({"group": np.array(groups), "prompt_tokens": texts, "completion_tokens": texts}, len(texts))
    model: Any = Known(logp)
    found = divergence(rows, model, k=k)["tokens"]
    return [found[row].tolist() for row in range(len(texts))]


def test_with_the_whole_vocabulary_it_is_the_sum_of_the_paper() -> None:
    generator = torch.Generator().manual_seed(0)
    logp = [torch.log_softmax(3 * torch.randn(4, VOCABULARY, generator=generator).double(), -1) for _ in range(5)]
    found = measured(logp, [0, 1, 0, 0, 1], VOCABULARY)
    for members in ([0, 2, 3], [1, 4]):
        group = torch.stack([logp[row] for row in members])
        difference = (group.mean(0, keepdim=True) - group).clamp(-11, 11)
        expected = (difference.exp() - difference - 1).sum(-1).mean(0).tolist()
        assert [found[row] for row in members] == [pytest.approx(expected)] * len(members)


def test_of_the_likeliest_tokens_and_of_answers_of_other_lengths_by_hand() -> None:
    # The first has token 0 at log 1/2, the second token 1 at log 1/4; each has the other's token at its own last.
    tail = [-9.0] * (VOCABULARY - 2)
    one, two = torch.tensor([[math.log(1 / 2), -8.0, *tail]]), torch.tensor([[-8.0, math.log(1 / 4), *tail]])
    found = measured([one.double(), torch.cat([two, two]).double(), one[:0].double()], [0, 0, 0], 1)
    # Both tokens have log 1/2 and log 1/4: d = -+log(2) / 2 for each.
    half = math.log(2) / 2
    expected = math.exp(half) - half - 1 + math.exp(-half) + half - 1
    assert found == [pytest.approx([expected]), pytest.approx([expected, 0]), []]
    assert measured([one.double()], [0], 3) == [pytest.approx([0.0])]


def test_a_difference_is_cut_at_eleven() -> None:
    far = [torch.tensor([[0.0] * 5 + [value]]).double() for value in (0.0, -40.0)]
    assert measured(far, [0, 0], VOCABULARY)[0] == pytest.approx([(math.exp(11) - 12 + math.exp(-11) + 10) / 2])


def test_answers_without_tokens_have_no_divergence() -> None:
    assert measured([torch.zeros(0, VOCABULARY)] * 2, [0, 1], 2) == [[], []]
