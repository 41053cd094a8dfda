"""Terms on entropy and temperature by hand; an update by entropy alone, without a reward that differs."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from gradus.data.schedules.curves import linear
from gradus.data.schedules.progress import Progress
from gradus.flows.recipe.overlays import overlay_files
from gradus.models.objectives.losses.regularising.entropies import dcpo, entropy_band, reinforce_at_1
from gradus.models.objectives.losses.regularising.regularisers import entropy
from gradus.models.objectives.rows import Rows
from gradus.tasks.config.learning import UpdateConfig
from tests.models.training.test_update import ONE_STEP, model, naive_logprobs, rollouts, trained
from tests.models.training.trial import plan_of


def of_tokens(**columns: list[float]) -> Rows:
    found = {name.replace("_", ".", 1): torch.tensor(each, dtype=torch.float64) for name, each in columns.items()}
    return Rows({}, found, torch.tensor([0, *[1] * len(next(iter(columns.values())))]))


def test_a_band_pulls_the_tokens_outside_it_towards_it() -> None:
    # Band 0.8 * 0.5 = 0.4 to 1.2 * 0.5 = 0.6.
    entropy = torch.tensor([0.1, 0.4, 0.5, 0.6, 1.0], dtype=torch.float64, requires_grad=True)
    rows = Rows({}, {"now.entropy": entropy}, torch.tensor([5]))
    loss, metrics = entropy_band(rows, mean=0.5)
    loss.sum().backward()
    assert loss.tolist() == pytest.approx([0.3, 0.0, 0.0, 0.0, 0.4])
    assert entropy.grad is not None
    assert entropy.grad.tolist()[::4] == [-1.0, 1.0]
    assert entropy.grad[2].item() == 0.0
    assert metrics["band_below_frac"].tolist() == [1, 0, 0, 0, 0]
    assert metrics["band_above_frac"].tolist() == [0, 0, 0, 0, 1]


def test_without_a_history_there_is_no_band() -> None:
    entropy = torch.tensor([0.0, 3.0], requires_grad=True)
    loss, metrics = entropy_band(Rows({}, {"now.entropy": entropy}, torch.tensor([2])))
    loss.sum().backward()
    assert entropy.grad is not None
    assert [*loss.tolist(), *entropy.grad.tolist()] == [0.0] * 4
    assert metrics["band_above_frac"].tolist() == [0.0, 0.0]


def test_the_policy_at_temperature_1_is_rewarded() -> None:
    rows = of_tokens(now_logp_at_1=[-1.5, -0.5], advantage=[1.0, 0.0])
    assert reinforce_at_1(rows)[0].tolist() == [1.5, 0.0]


def test_ratios_of_dcpo_by_hand() -> None:
    # pi = 1/2, pi_old = 1/4, pi at temperature 1 = 1/8: rho = 2, v = 1/4, the loss of reward 1 is -1/2; d rho = rho.
    logs = torch.tensor([0.5, 0.25, 0.125], dtype=torch.float64).log()
    now, hot = logs[:1].clone().requires_grad_(), logs[2:].clone().requires_grad_()
    given = {"now.logp": now, "old.logp": logs[1:2], "now.logp_at_1": hot, "advantage": torch.ones(1).double()}
    loss, metrics = dcpo(Rows({}, given, torch.tensor([1])))
    loss.sum().backward()
    assert loss.item() == pytest.approx(-0.5)
    assert now.grad is not None
    assert now.grad.item() == pytest.approx(-0.5)
    assert hot.grad is None
    assert metrics["tempered_mean"].item() == pytest.approx(0.25)


def test_entropy_alone_trains_rows_whose_rewards_are_equal() -> None:
    rows = rollouts(advantage=torch.zeros(6, dtype=torch.float64), reward=torch.zeros(6, dtype=torch.float64))
    settings = replace(
        ONE_STEP,
        loss=lambda rows: (-entropy(rows)[0], {}),
        needs=frozenset({"now.entropy"}),
        acts_without_advantage=True,
        lr=1e-2,
    )
    assert [step.tolist() for step in plan_of(rows, settings)] == [[0, 1, 2, 3, 4, 5]]
    state, log = trained(settings, rows)

    def mean_entropy(policy: PreTrainedModel) -> float:
        return float(torch.cat([naive_logprobs(policy, rows, row)[1].detach() for row in range(6)]).mean())

    assert log[0]["policy/loss"] == pytest.approx(mean_entropy(model()), rel=1e-5)
    assert mean_entropy(state.model) < mean_entropy(model()) - 1e-3


def test_one_shot_minimisation_is_a_term_that_needs_no_advantage() -> None:
    config = UpdateConfig.model_validate({"terms": [{"loss": "entropy", "coefficient": -1.0}]})
    (term,) = config.objective
    assert term.loss.component.acts_without_advantage
    assert term.coefficient == -1.0


def test_the_terms_of_t1_and_the_weight_of_grpo_d_are_what_their_overlays_say() -> None:
    t1 = UpdateConfig.model_validate(overlay("t1"))
    # L = L_clip + 0.001 KL(pi || average of the weights) - 0.001 H
    assert [(term.loss.name, term.coefficient) for term in t1.objective] == [
        ("clip", 1.0),
        ("k3", 0.001),
        ("entropy", 0.001),
    ]
    assert (t1.reference, t1.ema_decay, t1.loads_reference) == ("ema", 0.99, False)
    given = overlay("grpo_d")["kl_coef"]
    assert given.pop("schedule") == "linear"
    # A third of the way after 33 of 99 rounds: 0.001 + 0.039 / 3.
    found = [linear(Progress(index), **given) for index in (1, 34, 100, 500)]
    assert found == pytest.approx([0.001, 0.014, 0.04, 0.04])


def overlay(name: str) -> dict[str, Any]:
    """The section `update` of an overlay."""
    return tomllib.loads(overlay_files()[name].read_text(encoding="utf-8"))["update"]
