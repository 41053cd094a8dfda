"""A critic as files of a checkpoint: weights and the state of its optimiser, as safetensors."""

from collections.abc import Mapping

import torch
from safetensors.torch import save
from torch import Tensor

from gradus.models.training.checkpoint import CheckpointError, tensors_of
from gradus.models.training.steps.critic import Critic

CRITIC, CRITIC_OPTIMIZER = "critic.state", "critic_optimizer.state"
CRITIC_FILES = (CRITIC, CRITIC_OPTIMIZER)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def critic_bytes(critic: Critic) -> dict[str, bytes]:
    """Return the critic's files by name."""
    weights = {name: p.detach().cpu().contiguous() for name, p in critic.trained.items()}
    return {CRITIC: save(weights), CRITIC_OPTIMIZER: save(_moments(critic))}


def restore_critic(critic: Critic, files: Mapping[str, bytes]) -> None:
    """Restore a saved critic in place; raise CheckpointError, and change nothing, if it does not fit exactly."""
    missing = [name for name in CRITIC_FILES if name not in files]
    if missing:
        raise CheckpointError(f"{missing[0]} is missing")
    weights = tensors_of(files[CRITIC], CRITIC, {name: p.shape for name, p in critic.trained.items()})
    shapes = {f"{m}.{name}": () if m == "step" else p.shape for name, p in critic.trained.items() for m in _MOMENTS}
    moments = tensors_of(files[CRITIC_OPTIMIZER], CRITIC_OPTIMIZER, shapes)
    with torch.no_grad():
        for name, parameter in critic.trained.items():
            parameter.copy_(weights[name])
            critic.optimizer.state[parameter] = {
                m: moments[f"{m}.{name}"].to("cpu" if m == "step" else parameter.device) for m in _MOMENTS
            }


def _moments(critic: Critic) -> dict[str, Tensor]:
    """AdamW's state of every parameter; zeros, which is how AdamW begins, for one that no gradient has reached."""
    found: dict[str, Tensor] = {}
    for name, parameter in critic.trained.items():
        state = critic.optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            fresh = torch.tensor(0.0) if moment == "step" else torch.zeros_like(parameter)
            found[f"{moment}.{name}"] = state.get(moment, fresh).detach().cpu().contiguous()
    return found
