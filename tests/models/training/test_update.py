"""The update against a naive implementation; determinism, micro-batching, warm-up, refusals, learning."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gradus.models.objectives.aggregations.means import fixed_length, sequence_mean, token_mean
from gradus.models.objectives.ragged import Ragged
from gradus.models.objectives.rows import Rows
from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.learning_rows import learning_rows, mismatch, row_differences
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import UpdateError
from tests.models.training.saved import restore_bytes, state_bytes, weights_bytes
from tests.models.training.trial import Trial, all_logprobs, optimised, plan_of

LENGTH_TOKENS = 6
AGGREGATIONS = [token_mean, sequence_mean, partial(fixed_length, length_tokens=LENGTH_TOKENS)]
SETTINGS = Trial(lr=1e-3, epochs=2, minibatch_groups=1, micro_tokens=10_000, max_grad_norm=1e9)
ONE_STEP = replace(SETTINGS, epochs=1, minibatch_groups=0)


def model(seed: int = 0) -> PreTrainedModel:
    return new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=64, seed=seed).model


def train_state(seed: int = 0) -> TrainState:
    return TrainState(model(seed), SETTINGS.settings, seed=1)


def rollouts(**changes: Any) -> Rows:
    given: dict[str, Any] = {
        "prompts": Ragged.of([[9, 12], [9, 12], [5, 6, 7], [5, 6, 7], [8], [8]]),
        "completions": Ragged.of([[9, 10, 1], [11, 1], [12, 13, 14, 1], [9, 1], [15, 1], [16, 17, 1]]),
        "logprobs": torch.full((16,), -1.0),
        "temperature": torch.tensor([1.0, 1.0, 0.7, 0.7, 1.0, 1.0]),
        "advantage": torch.tensor([1.0, -1.0, 0.5, -0.5, 0.0, 0.0], dtype=torch.float64),
        "group": torch.tensor([0, 0, 1, 1, 2, 2]),
        "reward": torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64),
        "correct": torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64),
    }
    return learning_rows(**{**given, **changes})


def trained(
    settings: Trial,
    rows: Rows | None = None,
    *,
    start: TrainState | None = None,
    taken: int = 0,
    stop: int = 99,
    reference: Tensor | None = None,
    seen: list[tuple[Tensor, Tensor]] | None = None,
) -> tuple[TrainState, list[dict[str, float]]]:
    """A train state after the plan's steps `taken` to `stop`, and the metrics of those steps."""
    rows = rows or rollouts()
    found = start or train_state()
    plan = plan_of(rows, settings)
    known = {
        "old.logp": None if len(plan) == 1 else all_logprobs(model(), rows, settings.micro_tokens),
        "reference.logp": reference,
    }
    steps = plan[taken:stop]
    results = optimised(
        found, rows, settings, known, steps, check=lambda *given: (seen if seen is not None else []).append(given)
    )
    return found, [result.metrics for result in results]


def naive_logprobs(policy: PreTrainedModel, rows: Rows, row: int) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of one row's completion, from the whole logits."""
    prompt, completion = rows["prompt"][row].tolist(), rows["completion"][row].tolist()
    logits = policy(input_ids=torch.tensor([[*prompt, *completion]])).logits[0] / rows["temperature"][row]
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    return logp[range(len(completion)), completion], -(logp.exp() * logp).sum(-1)


def naive_loss(
    policy: PreTrainedModel,
    rows: Rows,
    chosen: list[int],
    settings: Trial,
    old: dict[int, Tensor],
    ref: Tensor | None,
) -> Tensor:
    """The objective as its papers write it, token by token."""
    first = rows["completion"].offsets.tolist()
    per_row: list[list[Tensor]] = []
    for row in chosen:
        logp, entropy = naive_logprobs(policy, rows, row)
        terms: list[Tensor] = []
        for t in range(len(logp)):
            if not math.isfinite(float(rows["sampler.logp"][first[row] + t])):
                continue
            ratio, advantage = (logp[t] - old[row][t]).exp(), float(rows["advantage"][row])
            low, high = 1 - 0.2, 1 + 0.28
            term = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
            if ref is not None:
                difference = ref[first[row] + t] - logp[t]
                term = term + settings.kl_coef * (difference.exp() - difference - 1)
            terms.append(term - settings.entropy_coef * entropy[t])
        per_row.append(terms)
    counted = [terms for terms in per_row if terms]
    if settings.aggregation is sequence_mean:
        return torch.stack([torch.stack(terms).mean() for terms in counted]).mean()
    flat = torch.stack([term for terms in counted for term in terms])
    return flat.mean() if settings.aggregation is token_mean else flat.sum() / (len(counted) * LENGTH_TOKENS)


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("regularised", [False, True])
def test_a_whole_update_is_that_of_a_naive_implementation(aggregation: Any, regularised: bool) -> None:
    # Row 2 has tokens 5 to 8; two of their log-probs are gaps.
    gaps = torch.full((16,), -1.0).index_copy(0, torch.tensor([6, 8]), torch.tensor([math.nan, -math.inf]))
    rows = rollouts(logprobs=gaps)
    coefs = {"kl_coef": 0.3, "entropy_coef": 0.1} if regularised else {}
    settings = replace(SETTINGS, aggregation=aggregation, warmup_steps=3, lr=1e-2, **coefs)
    reference = all_logprobs(model(seed=5), rows, 99) if regularised else None
    found, log = trained(settings, rows, reference=reference)

    policy = model()
    old = {row: naive_logprobs(policy, rows, row)[0].detach() for row in range(6)}
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0)
    plan = plan_of(rows, settings, 0)
    assert len(plan) == (6 if regularised else 4)
    for index, chosen in enumerate(plan):
        loss = naive_loss(policy, rows, chosen.tolist(), settings, old, reference)
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, (index + 1) / 3)
        norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in policy.parameters() if p.grad is not None]))
        optimizer.step()
        assert log[index]["policy/loss"] == pytest.approx(float(loss.detach()), abs=2e-5)
        assert log[index]["policy/grad_norm"] == pytest.approx(float(norm), rel=1e-2)
        assert log[index]["policy/lr"] == optimizer.param_groups[0]["lr"]
    for mine, other in zip(found.model.parameters(), policy.parameters(), strict=True):
        assert torch.allclose(mine, other, atol=2e-3)
    assert float((parameters(found) - parameters(train_state())).abs().max()) > 1e-2


def parameters(found: TrainState) -> Tensor:
    return torch.cat([p.detach().flatten() for p in found.model.parameters()])


def gradients(settings: Trial, rows: Rows) -> Tensor:
    """AdamW's first moment after one step is a tenth of the gradient."""
    found, _ = trained(settings, rows)
    return 10 * torch.cat([found.optimizer.state[p]["exp_avg"].flatten() for p in found.model.parameters()])


def test_the_gradient_of_one_step_is_that_of_the_naive_loss() -> None:
    rows, policy = rollouts(), model()
    old = {row: naive_logprobs(policy, rows, row)[0].detach() for row in range(6)}
    naive_loss(policy, rows, list(range(6)), ONE_STEP, old, None).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    assert torch.allclose(gradients(ONE_STEP, rows), expected, atol=1e-6)
    assert float(expected.abs().max()) > 0.01


@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=["token_mean", "sequence_mean", "fixed_length"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
def test_micro_batches_change_nothing_beyond_rounding(aggregation: Any, entropy_coef: float) -> None:
    whole = replace(ONE_STEP, aggregation=aggregation, entropy_coef=entropy_coef)
    reference = gradients(whole, rollouts())
    for budget in (1, 12):
        assert torch.allclose(gradients(replace(whole, micro_tokens=budget), rollouts()), reference, atol=1e-6)
    _, one = trained(whole)
    _, many = trained(replace(whole, micro_tokens=1))
    assert many[0] == pytest.approx(one[0], rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_the_same_update_gives_the_same_bits_and_resuming_changes_none() -> None:
    straight, log = trained(SETTINGS)
    assert weights_bytes(trained(SETTINGS)[0]) == weights_bytes(straight)
    half, _ = trained(SETTINGS, stop=2)
    again = train_state(seed=8)
    restore_bytes(again, state_bytes(half))
    resumed, rest = trained(SETTINGS, start=again, taken=2)
    assert weights_bytes(resumed) == weights_bytes(straight)
    assert state_bytes(resumed) == state_bytes(straight)
    assert rest == log[2:]


def test_the_only_step_is_exactly_on_policy_and_looked_at_before_it_is_taken() -> None:
    seen: list[tuple[Tensor, Tensor]] = []
    _, log = trained(ONE_STEP, seen=seen)
    assert (log[0]["policy/ratio_mean"], log[0]["policy/ratio_max"]) == (1.0, 1.0)
    assert (log[0]["policy/clip_frac_low"], log[0]["policy/clip_frac_high"]) == (0.0, 0.0)
    before = all_logprobs(model(), rollouts(), 10_000)
    assert seen[0][0].tolist() == list(range(6))
    assert torch.allclose(seen[0][1], before, atol=1e-6)


def test_an_objection_before_the_step_leaves_the_policy_as_it_was() -> None:
    untouched = train_state()

    def refuse(_rows: Tensor, _logp: Tensor) -> None:
        raise KeyError("objection")

    with pytest.raises(KeyError, match="objection"):
        optimised(untouched, rollouts(), ONE_STEP, check=refuse)
    assert (untouched.step, weights_bytes(untouched)) == (0, weights_bytes(train_state()))


def test_several_steps_hold_ratios_against_the_policy_before_the_first() -> None:
    _, log = trained(replace(SETTINGS, lr=0.05))
    assert log[0]["policy/ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert abs(log[-1]["policy/ratio_mean"] - 1) > 0.01
    assert log[-1]["policy/clip_frac_high"] + log[-1]["policy/clip_frac_low"] > 0


def test_warm_up_counts_the_steps_of_the_whole_run() -> None:
    started, _ = trained(replace(ONE_STEP, warmup_steps=4))
    _, log = trained(replace(ONE_STEP, warmup_steps=4), start=started)
    assert log[0]["policy/lr"] == pytest.approx(1e-3 * 2 / 4)
    assert started.step == 2


def test_gradients_are_scaled_down_to_the_limit() -> None:
    free, limited = gradients(ONE_STEP, rollouts()), gradients(replace(ONE_STEP, max_grad_norm=0.01), rollouts())
    assert float(limited.norm()) == pytest.approx(0.01, rel=1e-3)
    assert torch.allclose(limited / limited.norm(), free / free.norm(), atol=1e-4)
    assert trained(replace(ONE_STEP, max_grad_norm=0.01))[1][0]["policy/grad_norm"] == pytest.approx(
        float(free.norm()), rel=1e-4
    )


def test_tokens_with_a_gap_leave_the_loss_and_its_denominator() -> None:
    # Row 0 without log-probs: the step must be that of the other rows alone.
    gap = torch.cat([torch.full((3,), math.nan), rollouts()["sampler.logp"][3:]])
    alone = rollouts(group=torch.tensor([9, 0, 1, 1, 2, 2]))
    plan = (torch.arange(1, 6),)
    found: list[Tensor] = []
    for rows, steps in ((rollouts(logprobs=gap), (torch.arange(6),)), (alone, plan)):
        mine = train_state()
        optimised(mine, rows, ONE_STEP, plan=steps)
        found.append(torch.cat([mine.optimizer.state[p]["exp_avg"].flatten() for p in mine.model.parameters()]))
    assert torch.allclose(*found, atol=1e-7)


@pytest.mark.parametrize("column", ["old.logp", "reference.logp"])
@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf])
def test_a_gap_of_another_model_leaves_the_gradient_finite(column: str, gap: float) -> None:
    # Row 0 has a gap at its first token: the step is that of the other 15.
    trial, known = replace(ONE_STEP, kl_coef=1.0), all_logprobs(model(seed=5), rollouts(), 99)
    columns = {"old.logp": all_logprobs(model(), rollouts(), 99), "reference.logp": known}
    columns[column] = torch.cat([torch.tensor([gap]), columns[column][1:]])
    without = rollouts(trained=torch.arange(16) > 0)
    found: list[Tensor] = []
    for rows in (rollouts(), without):
        state = train_state()
        optimised(state, rows, trial, columns)
        found.append(torch.cat([state.optimizer.state[p]["exp_avg"].flatten() for p in state.model.parameters()]))
    assert bool(torch.isfinite(found[0]).all())
    assert torch.equal(*found)
    assert float(found[0].abs().max()) > 1e-4


def test_a_step_that_is_not_finite_is_refused() -> None:
    broken = train_state()
    with torch.no_grad():
        next(broken.model.parameters())[9, 0] = math.nan
    with pytest.raises(UpdateError, match="step 1 has loss nan"):
        trained(ONE_STEP, start=broken)
    assert broken.step == 0


def test_what_was_rewarded_becomes_more_likely() -> None:
    before = all_logprobs(model(), rollouts(), 1000)
    after = all_logprobs(trained(SETTINGS)[0].model, rollouts(), 1000)
    change = [float(part.sum()) for part in (after - before).split([3, 2, 4, 2, 2, 3])]
    assert change[0] > 0 > change[1]
    assert change[2] > 0 > change[3]


def test_dropout_of_the_architecture_stays_off() -> None:
    config = {"attention_dropout": 0.5}
    noisy = train_state()
    noisy.model.config.update(config)
    assert weights_bytes(trained(ONE_STEP, start=noisy)[0]) == weights_bytes(trained(ONE_STEP)[0])


def test_a_plan_takes_every_learnable_group_once_an_epoch_and_whole() -> None:
    rows = rollouts(group=torch.tensor([4, 4, 7, 7, 2, 2]))
    plan = plan_of(rows, SETTINGS, 3)
    # Group 2 has no advantage: alone in its step, nothing could be learnt, and that step is left out.
    assert sorted(listed(plan)[:2]) == sorted(listed(plan)[2:]) == [[0, 1], [2, 3]]
    with_bonus = plan_of(rows, replace(SETTINGS, entropy_coef=0.1), 3)
    assert sorted(listed(with_bonus)[:3]) == [[0, 1], [2, 3], [4, 5]]
    in_one = plan_of(rows, ONE_STEP, 3)
    assert listed(in_one) == [[0, 1, 2, 3, 4, 5]]


def listed(plan: Sequence[Tensor]) -> list[list[int]]:
    return [rows.tolist() for rows in plan]


def test_mismatch_is_worked_out_by_hand() -> None:
    trainer = torch.tensor([-1.0, -1.0 + math.log(2), -1.0, -2.0, -math.inf])
    rows = rollouts(
        prompts=Ragged.of([[9], [9]]), completions=Ragged.of([[9, 10, 1], [11, 1]]),
        logprobs=torch.tensor([-1.0, -1.0, math.nan, -2.0, -1.0]), temperature=torch.ones(2),
        advantage=torch.zeros(2).double(), group=torch.zeros(2).long(), reward=torch.zeros(2), correct=torch.zeros(2),
    )  # fmt: skip
    # Three finite tokens with differences 0, ln 2, 0; k3 of ln 2 is 2 - ln 2 - 1.
    assert mismatch(rows, trainer) == pytest.approx(
        {
            "mismatch/kl": (1 - math.log(2)) / 3,
            "mismatch/ratio_mean": 4 / 3,
            "mismatch/ratio_max": 2.0,
            "mismatch/logp_diff_mean": math.log(2) / 3,
            "mismatch/logp_diff_max": math.log(2),
            "mismatch/masked_frac": 2 / 5,
        },
        rel=1e-6,
    )
    assert row_differences(rows, trainer).tolist() == pytest.approx([math.log(2) / 2, 0.0], rel=1e-6)
    assert mismatch(rows.select(torch.tensor([1])), torch.full((2,), math.nan)) == {"mismatch/masked_frac": 1.0}


def test_rows_need_a_logprob_for_every_token() -> None:
    with pytest.raises(ValueError, match="16 completion tokens have 15 log-probs"):
        rollouts(logprobs=torch.full((15,), -1.0))
