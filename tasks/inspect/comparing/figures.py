"""The answer of `gradus compare --json`. Shares are from 0 to 1; types, no code."""

from typing import Any, Literal, NotRequired, TypedDict

from gradus.data.records import Figure

START = "its start"
Verdict = Literal["better", "worse", "equivalent", "undecided"]
Fields = dict[str, Any]
"""An object whose keys are named where it stands."""


class Cost(TypedDict):
    """Completion tokens sampled and seconds, means over seeds."""

    tokens: float
    seconds: float


class MethodFigures(Cost):
    """The result of one method: pass@1 before and after, costs a training, and its runs, one a seed."""

    method: str
    runs: list[str]
    seeds: list[int]
    rounds: list[int]
    before: Figure
    after: Figure
    gain: Figure
    by_seed: list[Fields]
    """Of each training: seed, run, rounds, tokens, seconds, pass@1 before and after."""
    truncated: float | None
    """Share of training completions that were cut off; None if no stage reported it."""
    dead_groups: float | None
    """Share of groups whose rewards are all equal; None if no stage reported it."""
    stages: dict[str, Cost]
    curve: list[Fields]
    """round, tokens sampled by then (mean over seeds) and pass_at_1; of rounds that every seed was evaluated after."""


class Judged(TypedDict):
    """The pass@1 of one method less that of another or of its own start, paired by problem and seed, and its verdict.

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


class Difference(Judged):
    """The difference of two methods, with what both spent."""

    sides: list[Fields]
    """method, tokens and seconds of a training of either."""
    shared_tokens: float
    """Share of the tokens of both that went into artifacts that both use."""


class PlanNote(TypedDict):
    """A plan made before: the file's digest, the smallest detectable difference, whether tokens had been sampled."""

    digest: str
    detectable: float
    measured: bool
    before_first_token: bool


class Tuning(TypedDict):
    """The result of tuning. `on` names the problems; empty: a part of the evaluated ones."""

    on: str
    problems: int
    seeds: list[int]
    methods: list[Fields]
    """method; `tried` in the order typed: values, runs, pass_at_1 (mean over seeds; None if one failed) and why it
    failed; `chosen` values, None if all failed."""
    cost: Fields
    """trainings, tokens and seconds of their stages, each counted once and evaluation left out."""
    remarks: list[str]


class Comparison(TypedDict):
    """Methods side by side. `start` is `same` if all were measured by one evaluation before training."""

    budget: str
    seeds: int
    problems: int
    margin: float
    clusters: Fields | None
    """column and number of clusters of problems."""
    plan: PlanNote | None
    start: str
    settings: list[Fields]
    """setting and its values by method, of those that are not the same for all."""
    methods: list[MethodFigures]
    gains: list[Judged]
    """Each method against START, its own pass@1 before training."""
    differences: list[Difference]
    by_difficulty: list[Fields]
    """band, problems, pass@1 before, and by method pass_at_1 and wins: at how many problems it alone is the best."""
    remarks: list[str]
    failed: NotRequired[list[Fields]]
    """method and reason of those without figures, as a training of them failed."""
    tuning: NotRequired[Tuning]
