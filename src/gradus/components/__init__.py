"""Components: the small functions that a recipe names, each registered by one decorator.

    from gradus.components import component

    @component("filter", paper="arXiv 2504.03380", needs=("pass_rate",))
    def pass_rate(candidates: Rows, *, low: Annotated[float, Ge(0.0), Le(1.0)] = 0.0) -> Selection:
        '''Keep problems whose pass rate is at least `low`.'''

The keyword-only arguments are the settings: types, bounds, defaults and docs are read from the source
(gradus.components.description), so that a recipe is checked without importing the module or running a user's file.
Types of settings: bool, int, float, str, Literal, tuple[T, ...], `T | None`, and Annotated with bounds of
annotated_types, `StringConstraints`, `Template` (gradus.components.templates), `REGEX` or `INCIDENTAL`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

F = TypeVar("F", bound=Callable[..., Any])

Kind = Literal[
    "filter",
    "ranking",
    "sampler",
    "hint",
    "wave",
    "tracker",
    "measure",
    "reward",
    "shape",
    "advantage",
    "loss",
    "aggregation",
    "correction",
    "weight",
    "optimizer",
    "schedule",
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


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Declaration of a component: it decorates the function, which stays as it is.

    Every argument must be a literal, since it is read from the source.
    """

    kind: Kind = field(kw_only=False)
    """Its kind; decides where a recipe may name it and how it is called."""
    name: str = ""
    """Name in recipes, if not that of the function."""
    paper: str = ""
    """Source of the method, such as an arXiv id."""
    version: int = 1
    """Raised if a result changes for the same inputs and settings; part of every identity that names it."""
    libraries: tuple[str, ...] = ()
    """Installed distributions that decide the result; their versions are part of the identity."""
    columns: tuple[str, ...] = ()
    """Columns of a row that a reward reads beside completion and answer; those that a tracker or measure makes."""
    by: tuple[str, ...] = ("problem_id",)
    """Key columns of a tracker's rows, as the rows of a round have them; () keeps one row of the whole run. A measure
    has problem_id, rollout_id, or trace_id for the texts of a file."""
    needs_gold: bool = False
    """True if a reward cannot judge a row without a gold answer."""
    decides: bool = False
    """True if a reward that needs no gold answer says whether an answer is correct."""
    sandbox: bool = False
    """True if a reward runs programs, for which a machine needs a sandbox."""
    isolated: bool = False
    """True if a reward's process itself runs in the sandbox, since its library evaluates what a model wrote."""
    needs: tuple[str, ...] | None = None
    """Columns that a function of rows reads: of candidates (gradus.data.curation.candidates), or of an update
    (gradus.models.objectives.columns). Others are refused, and what nobody needs is neither read nor computed.
    None reads what costs nothing. Of a schedule the metrics that it reads."""
    needs_head: bool = False
    """True if a measure asks for values: its model is then one with a scalar head."""
    per: Literal["row", "token"] | None = None
    """Granularity of an advantage, a row by default, or of a loss, a token by default: one number for each."""
    when: Literal["update", "step"] = "update"
    """Time of an advantage: once an update, or anew for every step."""
    returns: tuple[Carries, ...] = ("advantage",)
    """Quantities that an advantage can be taken as."""
    takes: tuple[Carries, ...] = ("advantage",)
    """Quantities that a loss can take as its advantage; () takes none."""
    mean_over: Literal["", "row", "token"] = ""
    """Units that an aggregation weighs alike; those that an advantage or a loss needs, or "" for either."""
    regulariser: bool = False
    """True if no weight multiplies a loss."""
    acts_without_advantage: bool = False
    """True if a loss has a gradient where the advantage is 0."""
    needs_sampler: bool = True
    """True if a loss needs rows with the log-probs of a sampler; False for losses of given texts."""
    compares_group: bool = False
    """True if an advantage compares the rows of a group: of one row, or of equal ones, it makes none."""
    reveals: bool = False
    """True if a hint strategy states the answer: its texts are for waves alone that train for the problem's prompt."""
    shown: str = ""
    """Sentence above a strategy's hints in a prompt; "" for the beginning of a correct solution, which the completion
    of a policy without a chat template continues."""
    elementwise: bool = False
    """True if an optimiser steps every number by itself, so that a rank can step its part of a parameter."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"there is no kind of component {self.kind!r}: it is one of {', '.join(KINDS)}")

    def __call__(self, function: F) -> F:
        """Return the function unchanged."""
        return function


component = Declaration
