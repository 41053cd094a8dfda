"""The objective that settings name, its components loaded."""

from gradus.components.chosen import AdvantageConfig, Chosen
from gradus.models.objectives.columns import columns_of
from gradus.models.objectives.objective import Advantage, Objective, Part, Term
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.identity.loading import load
from gradus.tasks.preflight.updates import check_objective


def objective_of(config: UpdateConfig) -> Objective:
    """Return the objective; UsageError if its parts do not go together."""
    check_objective(config)
    terms = config.objective
    chosen = list(dict.fromkeys(str(each.advantage) for each in terms))
    advantages = {str(each.advantage): each.advantage for each in terms if each.advantage is not None}
    return Objective(
        advantages=tuple(_advantage(advantages[text]) for text in chosen),
        terms=tuple(
            Term(
                loss=_part(each.loss),
                aggregation=_part(each.aggregation or config.aggregation),
                advantage=chosen.index(str(each.advantage)),
                weights=tuple(_part(part) for part in each.weights or ()),
                coefficient=each.coefficient,
                name=each.name,
                acts_without_advantage=each.loss.component.acts_without_advantage,
                needs_sampler=each.loss.component.needs_sampler,
                regulariser=each.loss.component.regulariser,
                over=each.over,
            )
            for each in terms
        ),
        correction=None if config.correction is None else _part(config.correction),
    )


def _advantage(chosen: AdvantageConfig) -> Advantage:
    return Advantage(_part(chosen), chosen.component.when, chosen.component.per)


def _part(chosen: Chosen) -> Part:
    component = chosen.component
    return Part(load(chosen), f"{component.kind} {chosen.label}", columns_of(component))
