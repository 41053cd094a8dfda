"""What several engines are held against: log-probs computed from a whole forward pass, in float64, by hand."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from models.engines.base import Request
from models.policy import Policy

Check = Callable[[Policy, Request, list[int], list[float], float], None]


@pytest.fixture(scope="session")
def check_logprobs() -> Check:
    """Assert that each token lies in what truncation leaves, and its log-prob is that of the rest renormalised."""

    def check(policy: Policy, request: Request, tokens: list[int], logprobs: list[float], bound: float) -> None:
        ids = torch.tensor([[*request.prompt_tokens, *tokens]])
        with torch.no_grad():
            logits = policy.model(ids).logits[0, len(request.prompt_tokens) - 1 : -1].double()
        probabilities = torch.softmax(logits / request.temperature, -1).numpy()
        for row, token, logprob in zip(probabilities, tokens, logprobs, strict=True):
            order = np.argsort(-row)[: request.top_k or None]
            share = row[order] / row[order].sum()
            if request.top_p < 1:
                order = order[: int(np.searchsorted(np.cumsum(share), request.top_p)) + 1]
            assert token in order
            assert logprob == pytest.approx(float(np.log(row[token] / row[order].sum())), abs=bound)

    return check
