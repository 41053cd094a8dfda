"""The stages tracker and measure with their settings, and the columns of them that a component reads."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import eq
from typing import Literal

from pydantic import Field

from gradus.components.chosen import Chosen, MeasureConfig, TrackerConfig, WaveConfig
from gradus.components.registry import names
from gradus.components.settings import INCIDENTAL, MAX_ROWS, Config, empty
from gradus.components.stage import Stage
from gradus.data.curation.uses import split_need
from gradus.data.errors import UsageError
from gradus.data.lake.schema import NO_TRACKER
from gradus.data.nearest import did_you_mean
from gradus.tasks.config.prompts import PromptConfig
from gradus.tasks.config.round_columns import round_columns, tracked_columns


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
        keys = [*self.tracker.by, *(key for by in self.tracked.values() for key in by)]
        return {**round_columns(self.tracker.needs, keys=keys), **tracked_columns(self.tracked)}


class MeasuringConfig(Config):
    """One call of a measure, on the problems, on rollouts of a round, or on the texts of a file."""

    measure: MeasureConfig
    """The function."""
    prompt: PromptConfig = Field(default_factory=PromptConfig, exclude_if=empty)
    """Prompt of a problem, as the model is asked; in a recipe that of its rollouts."""
    micro_tokens: int = Field(default=16_384, ge=1, le=MAX_ROWS)
    """Tokens that go through the model at once; in a recipe that of the update, as are the number format and device."""
    dtype: Literal["float32", "bfloat16"] = Field(default="float32", exclude_if=partial(eq, "float32"))
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
            if isinstance(keeper, MeasureConfig) and keeper.of_traces and not _has_traces(chosen):
                raise UsageError(
                    f"{chosen.kind} {chosen.label} needs {need}, which is of the texts of a file",
                    hint='let a wave with traces = "FILE" read it; given rows are rollouts too, with measures of those',
                )
            found[need] = keeper.by
    return found


def _has_traces(chosen: Chosen) -> bool:
    return isinstance(chosen, WaveConfig) and bool(chosen.traces)


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
        kind = "measure" if name in names("measure") else "tracker"
        hint = f'add it: [[{kind}s]] with name = "{name}" or "FILE.py:{name}"'
        return UsageError(f"{what}, and the recipe has no {kind} {name}", hint=hint)
    listed = f"it {'keeps' if keeper.kind == 'tracker' else 'makes'} {', '.join(keeper.keeps)}"
    return UsageError(
        f"{what}, which is no column of the {keeper.kind} {keeper.label}",
        hint=did_you_mean(need, keeper.keeps, listed),
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
    run="gradus.tasks.stages.tracker.stage:run",
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
    run="gradus.tasks.stages.tracker.measure:run",
)
