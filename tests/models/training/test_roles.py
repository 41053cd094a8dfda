"""Rows of several origins, other models beside the policy, and memory that runs out: a step against plain autograd."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gradus.models.objectives.advantages.critic import gae
from gradus.models.objectives.aggregations.means import sequence_mean, token_mean
from gradus.models.objectives.corrections.truncated import token_truncated
from gradus.models.objectives.losses.bellman import tbrm
from gradus.models.objectives.losses.distillation import distil
from gradus.models.objectives.losses.given import luffy, sft
from gradus.models.objectives.objective import MEMBERS
from gradus.models.objectives.rows import Rows
from gradus.models.training.learning_rows import mismatch
from gradus.models.training.packed.logprobs import Asked
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.settings import CriticConfig
from gradus.models.training.steps.critic import Critic
from gradus.models.training.train_state_files import critic_files, restore_critic
from tests.models.training.saved import write_alone
from tests.models.training.test_update import (
    ONE_STEP,
    SETTINGS,
    gradients,
    model,
    naive_logprobs,
    rollouts,
    train_state,
    trained,
)
from tests.models.training.trial import Trial, all_logprobs, optimised

GIVEN = torch.nn.functional.one_hot(torch.tensor([0, 0, 1, 0, 2, 0])).bool()
"""Row 2 is an expert's, row 4 a worked solution."""
UNRECORDED = torch.tensor([-1.0] * 5 + [torch.nan] * 4 + [-1.0] * 2 + [torch.nan] * 2 + [-1.0] * 3)
MIXED = replace(
    ONE_STEP,
    origin_losses=(
        ("expert", luffy, False),
        ("solution", sft, True),
    ),
)


def flat(policy: Any) -> Tensor:
    return torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])


def mixed_rows(**changes: Any) -> Rows:
    return rollouts(**{MEMBERS: GIVEN, "logprobs": UNRECORDED, **changes})


def naive_mixed(rows: Rows) -> Tensor:
    """The gradient of each row's own loss, the mean over all 16 tokens."""
    policy = model()
    terms: list[Tensor] = []
    for row in range(6):
        logp, advantage = naive_logprobs(policy, rows, row)[0], float(rows["advantage"][row])
        if row == 2:
            terms.append(-advantage * logp.exp() / (logp.exp() + 0.1))
        elif row == 4:
            terms.append(-logp)
        else:
            terms.append(-advantage * (logp - logp.detach()).exp())
    (torch.cat(terms).sum() / 16).backward()
    return flat(policy)


@pytest.mark.parametrize("budget", [10_000, 9, 1])
def test_given_rows_take_their_own_loss_beside_sampled_ones(budget: int) -> None:
    rows = mixed_rows()
    assert torch.allclose(gradients(replace(MIXED, micro_tokens=budget), rows), naive_mixed(rows), atol=1e-6)


def test_metrics_of_an_origin_are_those_of_its_own_tokens() -> None:
    rows = mixed_rows()
    _, log = trained(MIXED, rows)
    probability = naive_logprobs(model(), rows, 2)[0].detach().exp()
    assert log[0]["policy/expert_shaping_mean"] == pytest.approx(
        float((probability / (probability + 0.1)).mean()), rel=1e-4
    )
    assert log[0]["policy/ratio_mean"] == pytest.approx(1.0)


def test_rows_without_a_samplers_log_probs_have_no_importance_weight() -> None:
    rows = mixed_rows(logprobs=torch.where(torch.isnan(UNRECORDED), UNRECORDED, -9.0))
    (found,) = optimised(train_state(), rows, replace(MIXED, correction=token_truncated))
    assert found.weight[[2, 4]].tolist() == [1.0, 1.0]
    assert found.weight[[0, 1, 3, 5]].tolist() == pytest.approx([2.0] * 4)  # cut at the cap
    assert found.zero_gradient.tolist() == [False, False, False, False, False, True]
    assert (found.metrics["policy/correction_mean"], found.metrics["policy/correction_cut_frac"]) == (2.0, 1.0)


def test_tokens_without_loss_carry_none_and_count_nowhere() -> None:
    trained_tokens = torch.ones(16, dtype=torch.bool).index_fill(0, torch.tensor([1, 6, 7]), value=False)
    rows, policy = rollouts(trained=trained_tokens), model()
    logp = torch.cat([naive_logprobs(policy, rows, row)[0] for row in range(6)])
    advantage = rows["advantage"][rows.row].float()
    (-(logp * advantage)[trained_tokens].sum() / 13).backward()
    assert torch.allclose(gradients(ONE_STEP, rows), flat(policy), atol=1e-6)


def test_only_the_policys_own_tokens_are_compared_with_the_sampler() -> None:
    compared = torch.zeros(16, dtype=torch.bool).index_fill(0, torch.tensor([3, 4]), value=True)
    policy = model()
    own = all_logprobs(policy, rollouts(), 99)
    found = mismatch(rollouts(compared=compared, logprobs=torch.full((16,), -1.0)), own)
    expected = (own[3:5] + 1.0).double()
    assert found["mismatch/logp_diff_mean"] == pytest.approx(float(expected.abs().mean()))
    assert mismatch(rollouts(compared=torch.zeros(16, dtype=torch.bool)), own) == {}


def test_the_loss_of_a_teacher_is_that_of_its_most_likely_tokens() -> None:
    rows, teacher, policy = rollouts(), model(seed=5), model()
    asked = all_tokens(teacher, rows, Budget(7), asked=Asked(top_k=3))
    assert asked.top_ids is not None
    assert asked.top_logp is not None
    known = {"teacher.ids": asked.top_ids, "teacher.top": asked.top_logp}
    terms: list[Tensor] = []
    for row in range(6):
        theirs, mine = full(teacher, rows, row).detach(), full(policy, rows, row)
        top = theirs.topk(3)
        p, q = top.values.exp(), mine.gather(-1, top.indices).exp()
        rest_p, rest_q = 1 - p.sum(-1), 1 - q.sum(-1)
        terms.append((p * (p / q).log()).sum(-1) + rest_p * (rest_p / rest_q).log())
    torch.cat(terms).mean().backward()
    settings = replace(
        ONE_STEP, loss=distil, acts_without_advantage=True, needs=frozenset(["teacher.top", "now.top"]), micro_tokens=9
    )
    assert torch.allclose(moved(settings, rows, known), flat(policy), atol=1e-6)


def full(policy: Any, rows: Rows, row: int) -> Tensor:
    """Log-probs of the whole vocabulary at each place of a completion."""
    prompt, completion = rows["prompt"][row].tolist(), rows["completion"][row].tolist()
    logits = policy(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / rows["temperature"][row], -1)


def moved(settings: Trial, rows: Rows, known: Any) -> Tensor:
    """The gradient of an update of one step."""
    state = train_state()
    optimised(state, rows, settings, known)
    return 10 * torch.cat([state.optimizer.state[p]["exp_avg"].flatten() for p in state.model.parameters()])


def test_the_vocabulary_mean_of_a_log_ratio_reaches_a_loss() -> None:
    def rover(rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        ratio = rows["now.mean_logp"] - rows["reference.mean_logp"]
        return ratio * rows["advantage"] + rows["now.logp_at_1"], {}

    rows, reference, policy = rollouts(), model(seed=5), model()
    needs = frozenset(["now.mean_logp", "reference.mean_logp", "now.logp_at_1"])
    asked = all_tokens(reference, rows, Budget(9), asked=Asked(mean_logp=True))
    known = {"reference.logp": asked.logp, "reference.mean_logp": asked.mean_logp}
    total = torch.zeros(())
    for row in range(6):
        ratio = (full(policy, rows, row) - full(reference, rows, row).detach()).mean(-1)
        at_1 = naive_logprobs(policy, rows.adding({"temperature": torch.ones(6)}), row)[0]
        total = total + (ratio * float(rows["advantage"][row]) + at_1).sum() / 16
    total.backward()
    settings = replace(ONE_STEP, loss=rover, acts_without_advantage=True, needs=needs)
    assert torch.allclose(moved(settings, rows, known), flat(policy), atol=1e-6)


def test_a_bellman_residual_of_whole_rows_is_that_of_plain_autograd() -> None:
    rows, reference, policy = rollouts(), model(seed=5), model()
    asked = all_tokens(reference, rows, Budget(99))
    total = torch.zeros(())
    for row in range(6):
        prompt, completion = rows["prompt"][row].tolist(), rows["completion"][row].tolist()
        logits = policy(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1]
        ratio = naive_logprobs(policy, rows, row)[0] - naive_logprobs(reference, rows, row)[0].detach()
        value = (logits / rows["temperature"][row]).exp().sum().log()
        total = total + (value + ratio.sum() - float(rows["advantage"][row]) / 0.5) ** 2 / 6
    total.backward()
    settings = replace(
        ONE_STEP,
        loss=lambda batch: tbrm(batch, beta=0.5),
        aggregation=sequence_mean,
        acts_without_advantage=True,
        needs=frozenset(["reference.logp", "now.logsumexp"]),
        micro_tokens=9,
    )
    assert torch.allclose(moved(settings, rows, {"reference.logp": asked.logp}), flat(policy), atol=1e-5)


CRITICAL = replace(
    SETTINGS, step_advantage=lambda step: gae(step, whiten=False), needs=frozenset(["critic.value"]), minibatch_groups=0
)


def with_critic(critic: Critic, settings: Trial = CRITICAL) -> tuple[list[dict[str, float]], Tensor]:
    rows, state = rollouts(), train_state()
    known = {"old.logp": all_logprobs(state.model, rows, 99), "critic.value": critic.all_values(rows, Budget(99))}
    log = [step.metrics for step in optimised(state, rows, settings, known, critic=critic)]
    return log, torch.cat([p.detach().flatten() for p in state.model.parameters()])


def new_critic(lr: float = 0.01) -> Critic:
    return Critic(model(seed=3), CriticConfig(lr=lr, clip=10.0))


@pytest.mark.slow
def test_a_new_critic_knows_nothing_and_learns_the_reward() -> None:
    critic = new_critic()
    values = critic.all_values(rollouts(), Budget(9))
    assert values.tolist() == [0.0] * 16
    for _ in range(40):
        log, _ = with_critic(critic)
    rewards = rollouts()["reward"][rollouts().row]
    # Of four of the 16 tokens the state before does not tell which answer follows: value 0.5, loss 0.5^2 / 2 each.
    assert log[-1]["critic/loss"] == pytest.approx(4 * 0.125 / 16, abs=1e-3)
    # 12 of 16 tokens have reward 1: variance 3/16; what is left is 4 * 0.25 / 16 = 1/16.
    assert log[-1]["critic/explained_variance"] == pytest.approx(2 / 3, abs=0.02)
    found = critic.all_values(rollouts(), Budget(99))
    assert float((found - rewards).abs().mean()) == pytest.approx(4 * 0.5 / 16, abs=0.02)


def test_the_gradient_of_a_critic_is_that_of_plain_autograd_and_packs_change_nothing() -> None:
    critic, rows = new_critic(), rollouts()
    torch.nn.init.normal_(critic.head.weight, std=0.1, generator=torch.Generator().manual_seed(0))
    other = new_critic()
    other.load_state_dict(critic.state_dict())
    with_critic(critic, replace(CRITICAL, epochs=1, micro_tokens=9))
    terms: list[Tensor] = []
    for row in range(6):
        prompt, completion = rows["prompt"][row].tolist(), rows["completion"][row].tolist()
        decoder: Any = other.backbone.get_decoder()
        hidden = decoder(input_ids=torch.tensor([[*prompt, *completion]])).last_hidden_state[0, len(prompt) - 1 : -1]
        terms.append(
            (other.head(hidden)[:, 0] - rows["reward"][row].float()) ** 2 / 2
        )  # lambda = gamma = 1: the reward
    torch.cat(terms).mean().backward()
    names = [name for name, p in other.named_parameters() if p.grad is not None]
    assert "head.weight" in names
    norm = torch.sqrt(sum((p.grad.square().sum() for p in other.parameters() if p.grad is not None), torch.zeros(())))
    for name in names:
        expected = dict(other.named_parameters())[name].grad
        assert expected is not None
        found = 10 * critic.optimizer.state[critic.trained[name]]["exp_avg"] * max(1.0, float(norm))
        assert torch.allclose(found, expected, atol=1e-5), name


def files_of(critic: Critic, folder: Path) -> dict[str, Path]:
    folder.mkdir()
    write_alone(critic_files(critic), folder)
    return {path.name: path for path in sorted(folder.iterdir())}


def test_a_critic_goes_on_from_its_files_bit_for_bit(tmp_path: Path) -> None:
    critic = new_critic()
    with_critic(critic)
    again = new_critic()
    restore_critic(again, files_of(critic, tmp_path / "first"))
    straight, resumed = with_critic(critic), with_critic(again)
    assert straight[0] == resumed[0]
    assert torch.equal(straight[1], resumed[1])
    ends = [files_of(each, tmp_path / name) for each, name in ((critic, "straight"), (again, "resumed"))]
    assert [path.read_bytes() for path in ends[0].values()] == [path.read_bytes() for path in ends[1].values()]


def test_packs_are_halved_until_a_step_fits_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients(replace(ONE_STEP, aggregation=token_mean), rollouts())
    room, seen = 14, list[int]()
    backward = torch.Tensor.backward

    def short(self: Tensor, *args: Any, **options: Any) -> None:
        backward(self, *args, **options)  # a gradient that must not count twice
        if seen[-1] > room:
            raise torch.OutOfMemoryError("made for this test")

    import gradus.models.training.steps.pack_loss as module

    forward = module.token_logprobs

    def counted(*args: Any, **options: Any) -> Any:
        seen.append(args[1].num_tokens)
        return forward(*args, **options)

    monkeypatch.setattr(module, "token_logprobs", counted)
    monkeypatch.setattr(torch.Tensor, "backward", short)
    state, rows, budget = train_state(), rollouts(), Budget(10_000)
    optimised(state, rows, ONE_STEP, budget=budget)
    found = 10 * torch.cat([state.optimizer.state[p]["exp_avg"].flatten() for p in state.model.parameters()])
    assert torch.allclose(found, whole, atol=1e-6)
    assert budget.num_halvings == 10  # 10,000 / 2^10 = 9
    assert max(seen[-3:]) <= room
    assert seen[0] > room


def test_memory_that_no_smaller_pack_saves_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_args: Any, **_options: Any) -> Any:
        raise torch.OutOfMemoryError("made for this test")

    import gradus.models.training.passes as module

    monkeypatch.setattr(module, "token_logprobs", never)
    budget = Budget(100)
    with pytest.raises(torch.OutOfMemoryError):
        all_logprobs(model(), rollouts(), budget)
    assert budget.num_tokens <= 7  # the longest row, 3 + 4


def test_the_kl_to_the_policy_before_counts_tokens_that_it_sampled_alone() -> None:
    compared = torch.ones(16, dtype=torch.bool).index_fill(0, torch.arange(9, 11), value=False)
    settings = replace(MIXED, epochs=3, lr=0.05, loss=sft, acts_without_advantage=True)
    rows = rollouts(compared=compared)  # row 3 is given
    half, _ = trained(settings, rows, stop=2)
    new, old = (all_logprobs(each, rows, 99) for each in (half.model, model()))
    _, log = trained(settings, rows)
    difference = (new - old)[compared]
    assert log[2]["policy/kl_old"] == pytest.approx(float((difference.exp() - difference - 1).mean()), rel=1e-3)
    assert log[2]["policy/kl_old"] > 0.01
