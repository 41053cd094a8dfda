"""The answer of `gradus lab --json`. Shares are from 0 to 1; types, no code."""

from typing import NotRequired, TypedDict

from gradus.tasks.inspect.comparing.figures import Comparison
from gradus.tasks.runs.records import Metrics


class Cell(TypedDict):
    """The gradient of a method on a round, by a policy that is `age` updates newer than that which sampled."""

    method: str
    run: str
    round: int
    age: int
    artifact: str
    seconds: float
    metrics: Metrics


class Failure(TypedDict):
    """A method that could not be computed on these rounds."""

    method: str
    reason: str


class AtAge(TypedDict):
    """Means over the rounds at one age of the rows."""

    age: int
    rounds: int
    clipped_frac: float
    masked_frac: float


class Spread(TypedDict):
    """A mean over cells with its standard error, 0 for a single one."""

    mean: float
    error: float


class MethodFigures(TypedDict):
    """Means over the rounds and ages of a method; None for what no round has."""

    method: str
    rank: int
    """Place by gain, from 1."""
    gain: Spread | None
    """To first order, by how much a step raises the mean reward of held-out problems."""
    right: float | None
    """Change of the log-prob of right held-out completions by that step, nats a completion."""
    wrong: float | None
    cosine: float
    """Cosine to the gradient of the first method."""
    signal_to_noise: float | None
    norm: float
    tokens_frac: float
    """Share of tokens that are pulled at."""
    dead_groups_frac: float
    """Share of groups that nothing pulls at."""
    by_age: list[AtAge]
    same_as: str
    """The method before it whose gradients are the same on every round; empty if there is none."""
    seconds: float


class Laboratory(TypedDict):
    """Methods on the same stored rounds."""

    runs: list[str]
    rounds: list[int]
    ages: list[int]
    rows: int
    methods: list[MethodFigures]
    cosines: list[list[float]]
    """Cosine of each method's gradient to each other's, in the order of `methods`: means over cells."""
    cells: list[Cell]
    failed: list[Failure]
    remarks: list[str]
    comparisons: NotRequired[list[Comparison]]
    """Comparisons of those that were trained, at a quarter, half and all of the budget."""
