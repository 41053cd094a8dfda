"""Components: the small functions that a recipe names, each registered by one decorator.

    from gradus.components import component

    @component("filter", paper="arXiv 2504.03380", needs=("pass_rate",))
    def pass_rate(candidates: Rows, *, low: Annotated[float, Ge(0.0), Le(1.0)] = 0.0) -> Selection:
        '''Keep problems whose pass rate is at least `low`.'''

The keyword-only arguments are the settings: types, bounds, defaults and docs are read from the source
(gradus.components.description), so that a recipe is checked without importing the module or running a user's file.
Types of settings: bool, int, float, str, Literal, tuple[T, ...], `T | None`, and Annotated with bounds of
annotated_types, `StringConstraints`, `REGEX` or `INCIDENTAL`.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args

F = TypeVar("F", bound=Callable[..., Any])

Kind = Literal[
    "filter",
    "ranking",
    "sampler",
    "hint",
    "wave",
    "reward",
    "advantage",
    "loss",
    "aggregation",
    "correction",
    "weight",
    "optimizer",
]

Carries = Literal["advantage", "coefficient", "return"]
"""Quantity of an advantage, and of a loss's input: how much better a completion is than expected; a coefficient of its
log-probs in a gradient; a reward as it stands."""

KINDS: tuple[Kind, ...] = get_args(Kind)
OF_ROWS: tuple[Kind, ...] = ("advantage", "loss", "aggregation", "correction", "weight")
"""Parts of an objective, which are functions of gradus.models.objectives.rows.Rows."""

REGEX = "regex"
"""Marks a text, inside Annotated, that must be a regular expression."""

INCIDENTAL = "incidental"
"""Marks a setting, inside Annotated, on which no result depends: it is not part of an identity."""


def component(
    kind: Kind,
    *,
    name: str = "",
    paper: str = "",
    version: int = 1,
    libraries: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    needs_gold: bool = False,
    needs: tuple[str, ...] | None = None,
    per: Literal["row", "token"] | None = None,
    when: Literal["update", "step"] = "update",
    returns: tuple[Carries, ...] = ("advantage",),
    takes: tuple[Carries, ...] = ("advantage",),
    mean_over: Literal["", "row", "token"] = "",
    regulariser: bool = False,
    acts_without_advantage: bool = False,
    needs_sampler: bool = True,
    compares_group: bool = False,
    elementwise: bool = False,
) -> Callable[[F], F]:
    """Register a function as a component; return it unchanged.

    Every argument must be a literal, since it is read from the source.

    Args:
        kind: Its kind; decides where a recipe may name it and how it is called.
        name: Name in recipes, if not that of the function.
        paper: Source of the method, such as an arXiv id.
        version: Raised if a result changes for the same inputs and settings; part of every identity that names it.
        libraries: Installed distributions that decide the result; their versions are part of the identity.
        columns: Columns of a row that a reward reads beside completion and answer.
        needs_gold: True if a reward cannot judge a row without a gold answer.
        needs: Columns that a function of rows reads: of candidates (gradus.data.curation.candidates), or of an update
            (gradus.models.objectives.columns). Others are refused, and what nobody needs is neither read nor computed.
            None reads what costs nothing.
        per: Granularity of an advantage, a row by default, or of a loss, a token by default: one number for each.
        when: Time of an advantage: once an update, or anew for every step.
        returns: Quantities that an advantage can be taken as.
        takes: Quantities that a loss can take as its advantage; () takes none.
        mean_over: Units that an aggregation weighs alike; those that an advantage or a loss needs, or "" for either.
        regulariser: True if no weight multiplies a loss.
        acts_without_advantage: True if a loss has a gradient where the advantage is 0.
        needs_sampler: True if a loss needs rows with the log-probs of a sampler; False for losses of given texts.
        compares_group: True if an advantage compares the rows of a group: of one row, or of equal ones, it makes none.
        elementwise: True if an optimiser steps every number by itself, so that a rank can step its part of a parameter.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind of component {kind!r}: it is one of {', '.join(KINDS)}")

    def registered(function: F) -> F:
        return function

    return registered
