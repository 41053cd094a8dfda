"""How the log-probs that a sampler recorded differ from the trainer's. N rows, M tokens."""

import torch
from torch import Tensor

from gradus.models.objectives.batch import all_finite
from gradus.models.objectives.losses import MAX_LOG_RATIO, k3
from gradus.models.training.packed.logprobs import Logprobs
from gradus.models.training.rollouts import Rollouts


def mismatch(rollouts: Rollouts, trainer: Logprobs) -> dict[str, float]:
    """How sampler and trainer differ on the same tokens; ratio = exp(trainer - sampler), differences in nats.

    The trainer's log-probs are those as drawn. kl estimates KL(sampler || trainer) by k3. Tokens whose log-probs are
    not both finite count in masked_frac alone; if no others are left, it is the only metric. Those among them that the
    trainer's own truncation excludes are outside_frac, reported if rows are truncated. Empty if no token is compared.
    """
    trainer = _compared(rollouts, trainer)
    sampler, found = rollouts.logprobs[trainer.tokens], trainer.truncated_logp
    if not len(found):
        return {}
    finite = all_finite(sampler, found)
    masked = {"mismatch/masked_frac": float((~finite).double().mean())}
    if rollouts.drawn is not None:
        masked["mismatch/outside_frac"] = float(_outside(rollouts, trainer).double().mean())
    difference = (found - sampler)[finite].double()
    if difference.numel() == 0:
        return masked
    ratio = difference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return {
        "mismatch/kl": float(k3(sampler[finite].double(), found[finite].double()).mean()),
        "mismatch/ratio_mean": float(ratio.mean()),
        "mismatch/ratio_max": float(ratio.max()),
        "mismatch/logp_diff_mean": float(difference.abs().mean()),
        "mismatch/logp_diff_max": float(difference.abs().max()),
        **masked,
    }


def _compared(rollouts: Rollouts, trainer: Logprobs) -> Logprobs:
    """The tokens that the policy sampled after the prompt that they are trained for."""
    if rollouts.compared is None:
        return trainer
    chosen = rollouts.compared[trainer.tokens]
    return Logprobs(trainer.tokens[chosen], trainer.logp[chosen], trainer.truncated_logp[chosen])


def _outside(rollouts: Rollouts, trainer: Logprobs) -> Tensor:
    """Bool (M,): tokens that the sampler could draw and the trainer, truncated likewise, could not."""
    return torch.isneginf(trainer.truncated_logp) & torch.isfinite(rollouts.logprobs[trainer.tokens])


def num_outside(rollouts: Rollouts, trainer: Logprobs) -> Tensor:
    """(N,) int64: tokens of each row that the sampler could draw and the trainer, truncated likewise, could not."""
    trainer = _compared(rollouts, trainer)
    row = rollouts.completions.row[trainer.tokens]
    return torch.zeros(rollouts.num_rows, dtype=torch.int64).index_add_(0, row, _outside(rollouts, trainer).long())


def row_differences(rollouts: Rollouts, trainer: Logprobs) -> Tensor:
    """(N,) float64: mean |trainer - sampler| over a row's tokens of which both log-probs are finite; 0 without any."""
    trainer = _compared(rollouts, trainer)
    difference = (trainer.truncated_logp - rollouts.logprobs[trainer.tokens]).abs().double()
    row, finite = rollouts.completions.row[trainer.tokens], torch.isfinite(difference)
    sums, counts = torch.zeros(2, rollouts.num_rows, dtype=torch.float64)
    sums.index_add_(0, row, torch.where(finite, difference, 0.0))
    counts.index_add_(0, row, finite.double())
    return sums / counts.clamp_min(1)
