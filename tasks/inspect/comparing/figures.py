"""The answer of `gradus compare --json`. Shares are from 0 to 1; types, no code."""

from typing import Literal, NotRequired, TypedDict

from gradus.data.records import Figure

Verdict = Literal["better", "worse", "equivalent", "undecided"]


class Cost(TypedDict):
    """Completion tokens sampled and seconds, means over seeds."""

    tokens: float
    seconds: float


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


class MethodFigures(Cost):
    """The result of one method: pass@1 before and after, costs a training, and its runs, one a seed.

    `truncated` is the share of training completions that were cut off, `dead_groups` that of groups whose rewards are
    all equal; None if no stage reported it.
    """

    method: str
    runs: list[str]
    seeds: list[int]
    rounds: list[int]
    before: Figure
    after: Figure
    gain: Figure
    by_seed: list[SeedFigures]
    truncated: float | None
    dead_groups: float | None
    stages: dict[str, Cost]
    curve: list[Point]


class Side(Cost):
    """The cost of a training of one method of a pair."""

    method: str


class Difference(TypedDict):
    """The pass@1 of one method less that of another, paired by problem and seed, and what follows from it.

    The interval is that of the pair alone, 95 %; p values are adjusted for all pairs. `detectable` is the smallest
    difference that the data detect with a chance of 80 %, at the level of all pairs.
    """

    method: str
    than: str
    difference: Figure
    by_seed: list[float]
    p_different: float
    p_equivalent: float
    detectable: float
    verdict: Verdict
    sides: list[Side]
    shared_tokens: float
    """Share of the tokens of both that went into artifacts that both use."""


class Band(TypedDict):
    """Problems of one difficulty: pass@1 before and after, and at how many problems a method alone is the best."""

    band: str
    problems: int
    before: float | None
    pass_at_1: dict[str, float]
    wins: dict[str, int]


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


class Tried(TypedDict):
    """Values tried by setting, and pass@1 on the problems of tuning, mean over seeds; None if a training failed."""

    values: dict[str, str]
    runs: list[str]
    pass_at_1: float | None
    failed: NotRequired[str]


class TunedMethod(TypedDict):
    """The values tried of a method, in the order typed, and those chosen; None if all failed."""

    method: str
    tried: list[Tried]
    chosen: dict[str, str] | None


class TuningCost(Cost):
    """Trainings of tuning, and what their stages sampled and took, each counted once and evaluation left out."""

    trainings: int


class Tuning(TypedDict):
    """The result of tuning. `on` names the problems; empty: a part of the evaluated ones."""

    on: str
    problems: int
    seeds: list[int]
    methods: list[TunedMethod]
    cost: TuningCost
    remarks: list[str]


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
