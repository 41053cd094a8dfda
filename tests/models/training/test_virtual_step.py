"""A step that is taken back, against a real one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gradus.models.training.gradients import half_gradients, moved
from gradus.models.training.packed.forward import form_of
from gradus.models.training.passes import Budget
from gradus.models.training.update import Step, counted_rows
from tests.models.training.saved import weights_bytes
from tests.models.training.test_update import ONE_STEP, model, rollouts, train_state, trained
from tests.models.training.trial import all_logprobs


@pytest.mark.parametrize("max_grad_norm", [1e9, 1e-3])
def test_log_probs_change_as_by_the_update_and_the_weights_come_back(max_grad_norm: float) -> None:
    trial = replace(ONE_STEP, max_grad_norm=max_grad_norm)
    state, objective = train_state(), trial.objective
    before = weights_bytes(state)
    rows = counted_rows(objective.with_advantages(rollouts()), objective)
    step = Step(state, rows, objective, trial.settings, form_of(state.model), Budget(10_000))
    half_gradients(step, rows["group"] == 1, 2**20)
    for group in state.optimizer.param_groups:
        group["lr"] = 0.5  # an update sets it before its step
    found = moved(state, trial.settings, rollouts(), all_logprobs(model(), rollouts(), 10_000), Budget(10_000))
    assert weights_bytes(state) == before

    really, _ = trained(trial)
    change = (all_logprobs(really.model, rollouts(), 10_000) - all_logprobs(model(), rollouts(), 10_000)).numpy()
    of_rows = np.add.reduceat(change.astype(float), [0, 3, 5, 9, 11, 13])
    right = np.array([True, False, True, False, True, True])
    above = np.array([0.5, -0.5, 0.5, -0.5, 0.0, 0.0])  # rewards less the mean of their group
    assert found.right == pytest.approx(of_rows[right].mean(), rel=1e-3, abs=1e-6)
    assert found.wrong == pytest.approx(of_rows[~right].mean(), rel=1e-3, abs=1e-6)
    assert found.gain == pytest.approx((above * of_rows).mean(), rel=1e-3, abs=1e-6)
    assert found.gain > 0


def test_without_right_rows_their_change_is_not_known() -> None:
    trial, state = ONE_STEP, train_state()
    state.zero_grad()
    held = rollouts(correct=torch.zeros(6, dtype=torch.float64))
    found = moved(state, trial.settings, held, all_logprobs(model(), held, 10_000), Budget(10_000))
    assert np.isnan(found.right)
    assert (found.wrong, found.gain) == (0.0, 0.0)
