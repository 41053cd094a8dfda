"""The objective that settings name, its components loaded."""

from dataclasses import fields

import torch

from gradus.models.objectives.batch import ScoredBatch
from gradus.models.training.settings import OptimizerChoice, UpdateSettings
from gradus.tasks.config.components import Chosen
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.identity.loading import load


def update_settings(config: UpdateConfig) -> UpdateSettings:
    """The components loaded, every other field of the same name as it is."""
    parts: list[Chosen] = [config.advantage, config.loss, *config.weights]
    components = {
        "loss": load(config.loss),
        "aggregation": load(config.aggregation),
        "correction": load(config.correction) if config.correction is not None else None,
        "weights": tuple(load(each) for each in config.weights),
        "step_advantage": load(config.advantage) if config.advantage.component.needs else None,
        "needs": frozenset(need for part in parts for need in part.component.needs),
        "optimizer": OptimizerChoice(config.optimizer.name, config.optimizer.settings),
        "acts_without_advantage": config.loss.component.acts_without_advantage,
    }
    plain = {each.name for each in fields(UpdateSettings)} - set(components)
    return UpdateSettings(**components, **{name: getattr(config, name) for name in plain})


def update_advantage(config: UpdateConfig, batch: ScoredBatch) -> torch.Tensor:
    """The advantages (N,); 0 where every step makes its own."""
    if config.advantage.component.needs:
        return torch.zeros_like(batch.reward)
    return load(config.advantage)(batch)
