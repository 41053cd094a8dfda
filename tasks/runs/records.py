"""Records that runs keep as JSON: reports of stages, lines of the journal, and the account of a run that continues."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypeAlias, TypedDict

from gradus.data.records import Figure, JsonObject

Metrics: TypeAlias = dict[str, float]

Sample: TypeAlias = Mapping[str, object]
"""A row that a report shows to people: any column of a table, and what the stage says of it."""

Status = Literal["finished", "failed", "killed", "cancelled"]
"""Outcome of an attempt of a stage, or of a command."""


class Coverage(TypedDict):
    """Of how many rollouts the verdict is known; `failed` of those without one have no reward either."""

    rollouts: int
    judged: int
    unjudged: int
    failed: int
    coverage: float
    first_unjudged: NotRequired[list[str]]


class DomainFigures(TypedDict):
    """pass@1 on the problems of one domain."""

    pass_at_1: float
    low: float
    high: float
    n: int
    gain: NotRequired[Figure]


class Versus(TypedDict):
    """An evaluation beside that of another checkpoint on the same problems."""

    baseline: str
    problems: int
    gain_at: dict[str, Figure]
    newly_solved: int
    newly_lost: int
    gain: NotRequired[Figure]
    reward_gain: NotRequired[Figure]


class EvaluationFigures(TypedDict):
    """Figures that the stage `evaluate` computes from an evaluations table; figures at k by k as text."""

    suite: str
    rows: int
    pass_at: dict[str, Figure]
    fewer_samples_than: dict[str, int]
    mean_tokens: float | None
    per_domain: dict[str, DomainFigures]
    maj_at: NotRequired[dict[str, Figure]]
    reward_mean: NotRequired[Figure]
    versus: NotRequired[Versus]


class Evaluation(EvaluationFigures, Coverage):
    """The summary of the stage `evaluate`."""


class Summary(TypedDict, total=False):
    """Those counts of stages that programs read; each stage has some of them, and more that only people read."""

    rows: int
    groups: int
    uses: dict[str, list[str]]
    tokens: int
    given_tokens: int
    tokens_generated: int
    tokens_trained: int
    updates: int
    skipped_updates: int
    replaced_groups: int
    refused: dict[str, int]
    examples: list[str]
    problems: int
    repeated_levels: int
    stated_early: int
    tied_out: int
    ranking: str
    tied_value: str
    unmeasured: int
    failed_requests: int
    first_truncated: list[str]
    error: int
    timeout: int
    first_failed: list[str]
    rollouts: int
    unjudged: int
    failed: int
    first_unjudged: list[str]
    zero_std_groups: int
    first_zero_std: str
    most_mismatched: str
    oldest_updates: int
    oldest: str
    resumed: "Account"


class Counted(TypedDict):
    """Counts of what was planned, of what was on disk as a run continued, sampled again, and lost."""

    planned: int
    kept: int
    again: int
    lost: int


class Account(TypedDict):
    """Prompts (rows of plans) and their rollouts as a run continues."""

    prompts: Counted
    rollouts: Counted


class Report(TypedDict, total=False):
    """Report of a stage beside its artifact; empty for an artifact that no stage made."""

    metrics: Metrics
    summary: Summary
    samples: Sequence[Sample]
    steps: list[Metrics]
    clock: Metrics
    """Those of the metrics that were measured with a clock; not in the artifact, since they differ between attempts."""
    step_clock: list[Metrics]
    """The same for each optimiser step."""


class Counts(TypedDict):
    """Beginning of a run, number of stages that it computed and reused, seconds of those that it computed."""

    started: float | None
    stages: int
    reused: int
    seconds: float


class Brief(Counts):
    """A run in short; `error` is why it did not finish."""

    run: str
    status: str
    error: str
    verb: str


class Done(Counts):
    """Results of a run by the end of a command, for lists of runs."""

    gain: float | None
    outputs: dict[str, int | None]
    """Bytes of its artifacts and of the train states of its checkpoints; None for one without a manifest."""
    optional: list[str]
    """Those of them that may be missing."""


class RunSettings(TypedDict):
    """Contents of `run.json`; of a training also its recipe."""

    verb: str
    seed: NotRequired[int]
    recipe: NotRequired[JsonObject]


class Owner(TypedDict, total=False):
    """The process of a command; empty if none is known."""

    pid: int
    host: str


class Label(TypedDict):
    """The call of a stage, and its artifact."""

    stage: str
    round: int
    purpose: str
    output: str


class RunStarted(TypedDict):
    """A command began."""

    event: Literal["run_started"]
    time: float
    run: str
    invocation: str
    owner: Owner
    verb: NotRequired[str]
    params: NotRequired[JsonObject]
    changed: NotRequired[Mapping[str, Sequence[str]]]
    """Of a training: each setting that is not the default, with the default and its value as text."""
    prefect_flow_run_id: NotRequired[str]
    git_sha: NotRequired[str]


class StageStarted(Label):
    """An attempt of a stage began."""

    event: Literal["stage_started"]
    time: float
    attempt: str
    config: JsonObject
    inputs: Mapping[str, list[str]]


class StageFinished(TypedDict):
    """An attempt of a stage ended; `clock` and `step_clock` are those of its report, which the artifact lacks."""

    event: Literal["stage_finished"]
    time: float
    attempt: str
    status: Status
    seconds: float
    error: str
    folder: str
    summary: Summary
    clock: NotRequired[Metrics]
    step_clock: NotRequired[list[Metrics]]


class StageReused(Label):
    """A stage's artifact was there, and nothing was computed."""

    event: Literal["stage_reused"]
    time: float
    inputs: NotRequired[Mapping[str, list[str]]]
    """Inputs of the stage in this attempt; absent in older journals."""


class ModelAlias(TypedDict):
    """A checkpoint bears a name from now on."""

    event: Literal["model_alias"]
    time: float
    model: str
    alias: str
    ref: str
    note: str


class Pruned(TypedDict):
    """Files of artifacts were removed to make room."""

    event: Literal["pruned"]
    time: float
    outputs: list[str]
    bytes: int


class Resumed(TypedDict):
    """A run continued after a kill or a failure; the prompts so far, up to the first stage that was computed."""

    event: Literal["resumed"]
    time: float
    account: Account


class RunFinished(TypedDict):
    """A command ended."""

    event: Literal["run_finished"]
    time: float
    status: Status
    error: str
    so_far: NotRequired[Done | None]


Event = RunStarted | StageStarted | StageFinished | StageReused | ModelAlias | Pruned | Resumed | RunFinished


def counted(planned: int, kept: int) -> Counted:
    """Return counts without a loss."""
    return {"planned": planned, "kept": kept, "again": planned - kept, "lost": 0}


def total(accounts: Sequence[Account]) -> Account:
    """Return the sum of accounts."""
    given = ([account["prompts"] for account in accounts], [account["rollouts"] for account in accounts])
    prompts, rollouts = (counted(sum(p["planned"] for p in parts), sum(p["kept"] for p in parts)) for parts in given)
    return {"prompts": prompts, "rollouts": rollouts}


def sentence(account: Account) -> str:
    """Return the account in words."""
    prompts, rollouts = (
        f"{each['planned']:,} {name}, {each['kept']:,} kept, {each['again']:,} sampled again, {each['lost']:,} lost"
        for name, each in (("prompts", account["prompts"]), ("rollouts", account["rollouts"]))
    )
    return f"resumed: {prompts} ({rollouts})"
