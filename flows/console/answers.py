"""The answers of verbs, as `--json` prints them. Types, no code."""

from typing import NotRequired, TypedDict

from gradus.tasks.runs.records import Evaluation


class SuiteFigures(TypedDict):
    """A reported suite before and after training, and with the best checkpoint."""

    before: Evaluation
    after: Evaluation
    best: Evaluation


class Compared(TypedDict):
    """The checkpoint of a round, one that could have been the best."""

    round: int
    pass_at_1: float


class ChosenCheckpoint(TypedDict):
    """The choice of the best checkpoint; `optimistic` are the reported suites of the same problems."""

    suite: str
    round: int
    compared: list[Compared]
    optimistic: list[str]


class CurvePoint(Compared):
    """An evaluation after a round, and the value of the fitted curve there."""

    tokens: int
    """Completion tokens sampled for training up to the round."""
    fitted: float


class Curve(TypedDict):
    """The learning curve of a run on a suite, and the sigmoid through it."""

    run: str
    suite: str
    start: float
    asymptote: float
    """The rate that is approached."""
    exponent: float
    midpoint_tokens: float
    """Tokens at which half of the gain is made."""
    rmse: float
    points: list[CurvePoint]


class StageCounts(TypedDict):
    """Counts of one stage in a run."""

    ran: int
    reused: int
    seconds: float


class TrainAnswer(TypedDict):
    """The answer of a training run."""

    run: str
    rounds: int
    updates: int
    skipped_updates: int
    tokens_generated: int
    tokens_trained: int
    seconds: float
    stages: dict[str, StageCounts]
    before: Evaluation
    after: Evaluation
    gain: float
    suites: dict[str, SuiteFigures]
    choice: ChosenCheckpoint | None
    remarks: list[str]
    policy: str
    best: str
    roles: NotRequired[dict[str, str]]
    """The last models of roles that were trained."""
    out: str


class Cost(TypedDict):
    """Expected cost; None for a figure that was never measured."""

    rollouts: int | None
    """Completions to sample; None if no plan and nothing like it says how many."""
    tokens: int | None
    """Completion tokens to sample."""
    seconds: float | None


class Costs(Cost):
    """The cost of one stage in a run to come."""

    reused: int
    computed: int


class ForeseenCall(Cost):
    """A stage of a run to come: whether it is reused or computed, why, and its cost."""

    stage: str
    round: int
    purpose: str
    what: str
    why: str


class Memory(TypedDict):
    """Bytes that the stages need at least, and those that the machine has."""

    rollout: int
    update: int
    machine: int
    warning: str


class Signal(TypedDict):
    """Groups without variance expected in the first round to be sampled, before its waves; None for what is unknown."""

    round: int
    problems: int
    """Problems that the means are over."""
    drawn: bool
    """True if these are the problems that the round samples, or would by the pass rates known; False for all."""
    groups: int
    group: int | None
    """Completions of a group; None if they differ."""
    measured: int
    """Those of the problems that have a pass rate."""
    prior: list[float] | None
    """a and b of the Beta distribution of pass rates over problems."""
    no_variance_frac: float | None
    """Mean chance that the completions of a group are all right or all wrong."""
    solved_of_8: float | None
    """Problems of the round expected to be solved at least once in 8: its draw times pass@8."""
    rollout_tokens: float | None
    """Mean completion tokens of a rollout."""
    signal_group_tokens: float | None
    """Completion tokens for each group with variance."""


class Forecast(Cost):
    """The forecast of a training run."""

    run: str
    goes_on: bool
    stages: dict[str, Costs]
    calls: list[ForeseenCall]
    memory: Memory
    signal: Signal | None
    """None if nothing is left to sample, or the problems are not known yet."""
    remarks: list[str]


class FreedCheckpoint(TypedDict):
    """A checkpoint that lost something, and the updates and seconds that having it back takes."""

    round: int
    checkpoint: str
    lost: str
    bytes: int
    updates: int
    seconds: float
    repeats: bool
    """True if it can be restored."""


class Freed(TypedDict):
    """The result of pruning a run, done or foreseen; `spared` are checkpoints that other runs have too."""

    run: str
    bytes: int
    checkpoints: list[FreedCheckpoint]
    spared: list[str]
    done: bool


class Deleted(TypedDict):
    """The result of deleting a run, done or foreseen: artifacts by table; `staying` are those of other runs too."""

    run: str
    bytes: int
    artifacts: dict[str, int]
    staying: int
    done: bool


class Restored(TypedDict):
    """The cost of restoring a checkpoint, done or foreseen."""

    checkpoint: str
    updates: int
    seconds: float
    done: bool
