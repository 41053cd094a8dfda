"""Check that the parts of an objective go together before anything starts; torch is not imported.

check_objective(UpdateConfig.model_validate({"advantage": "disco"}))     # UsageError: clip takes no coefficients

What an advantage returns must be something that the loss takes, and a method that is defined as a mean over rows, or
over tokens, needs an aggregation that weighs these alike. No part names another.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial

from gradus.components import Kind
from gradus.components.chosen import Chosen
from gradus.components.description import Component
from gradus.components.registry import components
from gradus.data.errors import UsageError
from gradus.models.objectives.columns import COLUMNS, place_of
from gradus.tasks.config.learning import TermConfig, UpdateConfig

_WORDS = {"advantage": "advantages", "coefficient": "coefficients of log-probs", "return": "rewards as they stand"}


def check_objective(config: UpdateConfig) -> None:
    """Raise UsageError if a part lacks an input, or stands beside parts that train another objective."""
    for part in config.parts:
        _refuse_needs(part)
    for term in config.objective:
        _refuse_carriers(term)
        _refuse_mean(term)


def _refuse_needs(part: Chosen) -> None:
    place = place_of(part.component)
    known = [name for name, column in COLUMNS.items() if place in column.places]
    odd = [name for name in part.component.needs or () if name not in known]
    if odd:
        later = ', or declare when="step"' if place == "update" and odd[0] in COLUMNS else ""
        raise UsageError(
            f"{part.kind} {part.label} needs {odd[0]}, which its kind is not handed",
            hint=f"it can need {', '.join(known)}{later}",
        )


def _refuse_carriers(term: TermConfig) -> None:
    """Refuse a loss that can take nothing of what the advantage returns."""
    assert term.advantage is not None
    given, taken = set(term.advantage.component.returns), set(term.loss.component.takes)
    if not taken or given & taken:
        return
    fitting = _names("loss", lambda each: bool(given & set(each.takes)))
    others = _names("advantage", lambda each: bool(taken & set(each.returns)))
    raise UsageError(
        f"the advantage {term.advantage.label} returns {_listed(given)}, and the loss {term.loss.label} takes "
        f"{_listed(taken)}: together they train another objective",
        hint=f"set the loss to {fitting}, or the advantage to {others}",
    )


def _refuse_mean(term: TermConfig) -> None:
    """Refuse an aggregation that does not weigh alike what a part is defined as a mean over."""
    assert term.advantage is not None
    assert term.aggregation is not None
    over = term.aggregation.component.mean_over
    for part in (term.loss, *([term.advantage] if term.loss.component.takes else [])):
        wanted = part.component.mean_over
        if wanted and over != wanted:
            said = f"one over {over}s" if over else "none that it declares (mean_over)"
            raise UsageError(
                f"the {part.kind} {part.label} is defined as a mean over {wanted}s, and the aggregation "
                f"{term.aggregation.label} is {said}: together they train another objective",
                hint=f"set the aggregation to {_names('aggregation', partial(_is_mean_over, wanted))}",
            )


def _is_mean_over(what: str, component: Component) -> bool:
    return component.mean_over == what


def _names(kind: Kind, fits: Callable[[Component], bool]) -> str:
    return " or ".join(name for name, each in components(kind).items() if fits(each))


def _listed(carried: AbstractSet[str]) -> str:
    return " or ".join(_WORDS[each] for each in sorted(carried))
