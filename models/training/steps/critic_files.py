"""A critic as files of a train state: weights and the state of its optimiser, as safetensors."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from gradus.models.training.parallel.sharding import divided
from gradus.models.training.steps.critic import Critic
from gradus.models.training.tensor_files import Collect, SavedTensors, copy_into, tensor_files

CRITIC, CRITIC_OPTIMIZER = "critic", "critic_optimizer"
"""Stems of the files."""
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def critic_files(critic: Critic) -> dict[str, Collect]:
    """Return the critic's files by name."""
    return {**tensor_files(CRITIC, critic.trained), **tensor_files(CRITIC_OPTIMIZER, _moments(critic))}


def restore_critic(critic: Critic, files: Mapping[str, Path]) -> None:
    """Restore a saved critic in place; raise CheckpointError, and change nothing, if it does not fit exactly."""
    weights = SavedTensors.of(CRITIC, files)
    weights.require({name: tuple(p.shape) for name, p in critic.trained.items()})
    shapes = {
        f"{m}.{name}": () if m == "step" else tuple(p.shape) for name, p in critic.trained.items() for m in _MOMENTS
    }
    saved = SavedTensors.of(CRITIC_OPTIMIZER, files)
    saved.require(shapes)
    copy_into(critic.trained, weights)
    moments = dict(saved)
    for name, parameter in critic.trained.items():
        critic.optimizer.state[parameter] = {
            m: moments[f"{m}.{name}"].clone() if m == "step" else divided(moments[f"{m}.{name}"], parameter)
            for m in _MOMENTS
        }


def _moments(critic: Critic) -> dict[str, Tensor]:
    """AdamW's state of every parameter; zeros, which is how AdamW begins, for one that no gradient has reached."""
    found: dict[str, Tensor] = {}
    for name, parameter in critic.trained.items():
        state = critic.optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            fresh = torch.tensor(0.0) if moment == "step" else torch.zeros_like(parameter)
            found[f"{moment}.{name}"] = state.get(moment, fresh).detach()
    return found
