"""The objective that settings name, its components loaded."""

from dataclasses import fields

import torch

from gradus.components import Need
from gradus.data.errors import BadInputError
from gradus.models.objectives.batch import ScoredBatch
from gradus.models.training.settings import OptimizerChoice, OriginLoss, UpdateSettings
from gradus.tasks.config.components import Chosen
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.identity.loading import load

_OF_A_STEP: frozenset[Need] = frozenset({"logp", "entropy", "reference", "values"})
_OF_A_LOSS: frozenset[Need] = frozenset(
    {"reference", "reference_mean_logp", "mean_logp", "logsumexp", "logp_at_1", "teacher"}
)


def update_settings(config: UpdateConfig) -> UpdateSettings:
    """The components loaded, every other field of the same name as it is.

    BadInputError if a component needs what only another kind of component is handed.
    """
    for part in (config.advantage, *config.weights):
        _refuse_needs(part, _OF_A_STEP)
    for part in config.losses:
        _refuse_needs(part, _OF_A_LOSS)
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


def _refuse_needs(part: Chosen, known: frozenset[Need]) -> None:
    odd = sorted(set(part.component.needs) - known)
    if odd:
        raise BadInputError(
            f"{part.kind} {part.label} needs {odd[0]}, which its kind is not handed",
            hint=f"it can need {', '.join(sorted(known))}",
        )


def update_advantage(config: UpdateConfig, batch: ScoredBatch) -> torch.Tensor:
    """The advantages (N,); 0 where every step makes its own."""
    if config.advantage.component.needs:
        return torch.zeros_like(batch.reward)
    return load(config.advantage)(batch)
