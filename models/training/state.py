"""A policy in training with its optimiser and random numbers."""

from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from gradus.models.training.settings import UpdateSettings


@dataclass
class TrainState:
    """A policy in training: its model, its optimiser, its random numbers and the steps that the run has taken."""

    model: PreTrainedModel
    optimizer: torch.optim.AdamW
    rng: np.random.Generator
    step: int = 0

    @classmethod
    def new(cls, model: PreTrainedModel, settings: UpdateSettings, seed: int) -> "TrainState":
        """Return a train state with a fresh optimiser."""
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
        )
        return cls(model, optimizer, np.random.Generator(np.random.PCG64(seed)))

    def adopt(self, settings: UpdateSettings) -> None:
        """Continue with other settings, as a train state read from disk does; the learning rate is set at each step."""
        for group in self.optimizer.param_groups:
            group.update(betas=settings.betas, weight_decay=settings.weight_decay)
