"""The answer of `gradus compare --json`. Shares are from 0 to 1; types, no code."""

from typing import NotRequired, TypedDict

from gradus.data.records import Figure
from gradus.tasks.inspect.comparing.difficulty import Band
from gradus.tasks.inspect.comparing.trainings import StageCost
from gradus.tasks.inspect.comparing.tuning import Tuning
from gradus.tasks.inspect.comparing.verdicts import Difference


class Point(TypedDict):
    """pass@1 after a round that every seed was evaluated after; tokens sampled by then, mean over seeds."""

    round: int
    tokens: float
    pass_at_1: Figure


class SeedFigures(TypedDict):
    """The result of the training of one seed."""

    seed: int
    run: str
    rounds: int
    tokens: int
    seconds: float
    before: float
    after: float


class MethodFigures(TypedDict):
    """The result of one method: pass@1 before and after, costs a training, and its runs, one a seed.

    `truncated` is the share of training completions that were cut off, `dead_groups` that of groups whose rewards are
    all equal; None if no stage reported it.
    """

    method: str
    runs: list[str]
    seeds: list[int]
    rounds: list[int]
    tokens: float
    seconds: float
    before: Figure
    after: Figure
    gain: Figure
    by_seed: list[SeedFigures]
    truncated: float | None
    dead_groups: float | None
    stages: dict[str, StageCost]
    curve: list[Point]


class Setting(TypedDict):
    """A setting that is not the same for all methods: its value by method."""

    setting: str
    values: dict[str, str]


class Clusters(TypedDict):
    """By which column problems are clustered, and how many clusters there are."""

    column: str
    number: int


class PlanNote(TypedDict):
    """A plan made before: the file's digest, the smallest detectable difference, whether tokens had been sampled."""

    digest: str
    detectable: float
    measured: bool
    before_first_token: bool


class FailedMethod(TypedDict):
    """A method that has no figures, as a training of it failed."""

    method: str
    reason: str


class Comparison(TypedDict):
    """Methods side by side. `start` is `same` if all were measured by one evaluation before training."""

    budget: str
    seeds: int
    problems: int
    margin: float
    clusters: Clusters | None
    plan: PlanNote | None
    start: str
    settings: list[Setting]
    methods: list[MethodFigures]
    differences: list[Difference]
    by_difficulty: list[Band]
    remarks: list[str]
    failed: NotRequired[list[FailedMethod]]
    tuning: NotRequired[Tuning]
