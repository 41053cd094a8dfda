"""The objective that settings name, its components loaded."""

from dataclasses import fields

import torch

from gradus.models.objectives.batch import ScoredBatch
from gradus.models.training.settings import OptimizerChoice, OriginLoss, UpdateSettings
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.identity.loading import load
from gradus.tasks.preflight.objective import check_needs


def update_settings(config: UpdateConfig) -> UpdateSettings:
    """The components loaded, every other field of the same name as it is.

    UsageError if a component needs what only another kind of component is handed.
    """
    check_needs(config)
    components = {
        "loss": load(config.loss),
        "aggregation": load(config.aggregation),
        "correction": load(config.correction) if config.correction is not None else None,
        "weights": tuple(load(each) for each in config.weights),
        "step_advantage": load(config.advantage) if config.advantage.component.needs else None,
        "needs": config.needs,
        "optimizer": OptimizerChoice(config.optimizer.name, config.optimizer.settings),
        "acts_without_advantage": config.loss.component.acts_without_advantage,
        "needs_sampler": config.loss.component.needs_sampler,
        "origin_losses": tuple(
            OriginLoss(
                each.origin,
                load(each.loss),
                each.loss.component.acts_without_advantage,
                each.loss.component.needs_sampler,
            )
            for each in config.origin_losses
        ),
    }
    plain = {each.name for each in fields(UpdateSettings)} - set(components)
    return UpdateSettings(**components, **{name: getattr(config, name) for name in plain})


def update_advantage(config: UpdateConfig, batch: ScoredBatch) -> torch.Tensor:
    """The advantages (N,); 0 where every step makes its own."""
    if config.advantage.component.needs:
        return torch.zeros_like(batch.reward)
    return load(config.advantage)(batch)
