"""The stages shape, tracker and measure with their settings, and the columns of a round that its components read."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from gradus.components.chosen import Chosen, MeasureConfig, ShapeConfig, TrackerConfig, WaveConfig
from gradus.components.registry import components
from gradus.components.settings import INCIDENTAL, MAX_ROWS, Config, empty, optional
from gradus.components.stage import Stage
from gradus.data.curation.uses import split_need
from gradus.data.errors import UsageError
from gradus.data.lake.schema import (
    LENGTH,
    MARKS,
    NO_TRACKER,
    OF_MARKS,
    OF_PARTS,
    OF_PLAN,
    OF_PROBLEM,
    PLACES,
    PLAN,
    PROBLEMS,
    ROLLOUTS,
    SCORES,
    TableSchema,
)
from gradus.data.nearest import did_you_mean
from gradus.models.templates import PromptConfig

_TOKENS = ("prompt_tokens", "completion_tokens", "logprobs", "spans", "trained_prompt_tokens")
"""Columns that are read only for a component that declares them."""
_ALWAYS = {
    "rollouts": ("rollout_id", "problem_id", "group_id", "hint_level", "hint_text", "plan_id", "wave", "call", "use"),
    "scores": ("rollout_id",),
    "problems": ("problem_id", "question", "messages"),
    "plan": ("problem_id", "group_id", "hint_level", "plan_id", "shown"),
}

_SHAPED = ("origin", "reward", "correct", "parent", "replaces")
"""Columns that a batch is made of, whatever its shapes declare."""


def round_columns(
    needs: Collection[str] | None,
    curated: Sequence[Collection[str] | None] = (),
    keys: Collection[str] = (),
    tracked: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, tuple[str, ...]]:
    """Return the columns that are read of rollouts, scores, problems, plan and trackers; None needs all but tokens.

    `curated` are the needs of filters, ranking and sampler that it draws further problems by, `keys` the key columns
    of its own rows, `tracked` those of each column of a tracker. A need of rows of another use is read with those of
    the rows that are learned from: they stand in the same tables.
    """
    needs = None if needs is None else [split_need(need)[1] for need in needs]
    named = (*(needs or ()), *keys, *(key for by in tracked.values() for key in by))
    places = [name for name in PLACES if name in named]
    tokens = {LENGTH: "completion_tokens"} if LENGTH in named else {}
    tokens |= {"completion": "completion", "tokens": "completion_tokens"} if places else {}
    problems = [*named, *(need for each in curated for need in each or ())]
    everything = None in (needs, *curated)
    return {
        "rollouts": (*_columns(ROLLOUTS, needs, {**{name: name for name in named}, **tokens}, but=_TOKENS), *places),
        "scores": _columns(SCORES, needs, {n: _of_score(n) for n in named}),
        "problems": _columns(PROBLEMS, None if everything else problems, {n: of_problem(n) for n in problems}),
        "plan": _columns(PLAN, needs, {n: n.removeprefix(OF_PLAN) for n in named if n.startswith(OF_PLAN)}),
        **tracked_columns(tracked),
    }


def tracked_columns(tracked: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return the columns that are read of the role trackers: these, and their key columns; nothing if there are none.

    Key columns are by NAME.COLUMN.
    """
    keys = (key for by in tracked.values() for key in by)
    return {"trackers": tuple(dict.fromkeys((*keys, *tracked)))} if tracked else {}


def _columns(
    table: TableSchema, needs: Collection[str] | None, named: Mapping[str, str], but: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the columns of a table that are read: those named, all but a few if nothing is declared."""
    known = [column.name for column in table.columns]
    asked = set(known) - set(but) if needs is None else set(named.values())
    carried = [name for name in named.values() if table is PLAN and name not in known]
    return (*(name for name in known if name in asked or name in _ALWAYS[table.name]), *carried)


def _of_score(need: str) -> str:
    """Return the column of scores that a need is read from."""
    return "components" if need.startswith(OF_PARTS) else MARKS if need.startswith(OF_MARKS) else need


def of_problem(need: str) -> str:
    """Return the column of problems that a need is read from."""
    name = need.removeprefix(OF_PROBLEM)
    return name if need == name or name in PROBLEMS.names else "extra"


class TrackingConfig(Config):
    """One call of a tracker, after the rollouts of a round."""

    tracker: TrackerConfig
    """The function."""
    tracked: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude_if=empty)
    """Key columns of each column of a tracker that it reads, by its name; in a recipe those of its `trackers`."""
    means: tuple[str, ...] = Field(default=(), exclude_if=empty)
    """Own columns, NAME.COLUMN, whose means over all rows are metrics; in a recipe those that anything follows."""

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems, plan and trackers."""
        return round_columns(self.tracker.needs, keys=self.tracker.by, tracked=self.tracked)


class MeasuringConfig(Config):
    """One call of a measure, on the problems, on rollouts of a round, or on the texts of a file."""

    measure: MeasureConfig
    """The function."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """Prompt of a problem, as the model is asked; in a recipe that of its rollouts."""
    micro_tokens: int = Field(default=16_384, ge=1, le=MAX_ROWS)
    """Tokens that go through the model at once; in a recipe that of the update, as are the number format and device."""
    dtype: Literal["float32", "bfloat16"] = optional("float32")
    """Number format of the computation."""
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", json_schema_extra=INCIDENTAL)
    """Device on which the model computes."""

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems and plan."""
        return round_columns(self.measure.needs, keys=self.measure.by)


def tracked_by(keepers: Sequence[Chosen], readers: Iterable[Chosen]) -> dict[str, tuple[str, ...]]:
    """Return the key columns of each column of a tracker or measure that components need, by its name.

    Raise UsageError if one needs a column that none of them makes.
    """
    known = {each.short: each for each in keepers}
    found: dict[str, tuple[str, ...]] = {}
    for chosen in readers:
        for need in filter(is_tracked, chosen.needs or ()):
            keeper = known.get(need.partition(".")[0])
            if keeper is None or (keeper.keeps and need not in keeper.keeps):
                raise _unkept(chosen, need, keeper)
            reads_traces = isinstance(chosen, WaveConfig) and bool(chosen.traces)
            if isinstance(keeper, MeasureConfig) and keeper.of_traces and not reads_traces:
                raise UsageError(
                    f"{chosen.kind} {chosen.label} needs {need}, which is of the texts of a file",
                    hint='let a wave with traces = "FILE" read it; given rows are rollouts too, with measures of those',
                )
            found[need] = keeper.by
    return found


def is_tracked(column: str) -> bool:
    """Return whether a column is called as one of a tracker or measure is: NAME.COLUMN.

    >>> is_tracked("spo.value"), is_tracked("plan.n"), is_tracked("value: plan.branch_at")
    (True, False, False)
    """
    name, dot, _ = split_need(column)[1].partition(".")
    return bool(dot) and name not in NO_TRACKER


def _unkept(chosen: Chosen, need: str, keeper: Chosen | None) -> UsageError:
    what, name = f"{chosen.kind} {chosen.label} needs {need}", need.partition(".")[0]
    if keeper is None:
        kind = "measure" if name in components("measure") else "tracker"
        hint = f'add it: [[{kind}s]] with name = "{name}" or "FILE.py:{name}"'
        return UsageError(f"{what}, and the recipe has no {kind} {name}", hint=hint)
    listed = f"it {'keeps' if keeper.kind == 'tracker' else 'makes'} {', '.join(keeper.keeps)}"
    return UsageError(
        f"{what}, which is no column of the {keeper.kind} {keeper.label}", hint=did_you_mean(need, keeper.keeps, listed)
    )


TRACKER = Stage(
    "tracker",
    "Update rows that are kept from round to round.",
    version=1,
    makes="trackers",
    settings=TrackingConfig,
    reads=lambda settings: settings.reads,
    draws=False,
    verb=False,
    run="gradus.tasks.stages.tracker:run",
)
MEASURE = Stage(
    "measure",
    "Ask a frozen model about the problems, the rollouts of a round or given texts, by forward passes.",
    version=1,
    makes="measures",
    settings=MeasuringConfig,
    reads=lambda settings: settings.reads,
    draws=False,
    verb=False,
    worker="policy",
    run="gradus.tasks.stages.measure:run",
)


def is_carried(name: str) -> bool:
    """Return whether a column is one of a row's problem, plan, rewards or trackers, kept in the table `batch`.

    >>> is_carried("problem.level"), is_carried("spo.value"), is_carried("now.logp")
    (True, True, False)
    """
    return name.startswith((OF_PROBLEM, OF_PLAN, OF_PARTS, OF_MARKS)) or is_tracked(name)


class ShapingConfig(Config):
    """Functions that decide what of the rows of a round is learned from, and columns kept beside them."""

    shapes: tuple[ShapeConfig, ...] = ()
    """The functions, in order."""
    drop_replaced_groups: bool = True
    """Leave out a group of which every rollout failed once its problem was sampled again with a hint."""
    role: str = Field(default="", exclude_if=empty)
    """The role whose rows are learned from; empty for the policy."""
    carried: tuple[str, ...] = ()
    """Columns of problems, plan rows and trackers, parts of the reward and marks that the objective reads."""
    tracked: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude_if=empty)
    """Key columns of each column of a tracker that is read, by its name; in a recipe those of its `trackers`."""

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems, plan and trackers."""
        needs = [each.needs for each in self.shapes]
        declared = (name for each in needs for name in each or ())
        named = [*_SHAPED, *(["role"] if self.role else []), *self.carried, *declared]
        return round_columns(None if None in needs else named, tracked=self.tracked)


SHAPE = Stage(
    "shape",
    "Decide which rows of a round an update learns from, with which reward, group and weight.",
    version=2,
    makes="batch",
    settings=ShapingConfig,
    reads=lambda settings: settings.reads,
    verb=False,
    run="gradus.tasks.stages.shape:run",
)
