"""The stage tracker: its declaration and settings, and which columns of trackers a component reads."""

from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from gradus.components.chosen import Chosen, TrackerConfig
from gradus.components.settings import Config, empty
from gradus.components.stage import Stage
from gradus.data.curation.uses import split_need
from gradus.data.errors import UsageError
from gradus.data.lake.schema import NO_TRACKER
from gradus.data.nearest import did_you_mean
from gradus.tasks.config.round_columns import round_columns, tracked_columns


class TrackingConfig(Config):
    """One call of a tracker, after the rollouts of a round."""

    tracker: TrackerConfig
    """The function."""
    tracked: dict[str, tuple[str, ...]] = Field(default_factory=dict, exclude_if=empty)
    """Key columns of each column of a tracker that it reads, by its name; in a recipe those of its `trackers`."""

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems, plan and trackers."""
        keys = [*self.tracker.by, *(key for by in self.tracked.values() for key in by)]
        return {**round_columns(self.tracker.needs, keys=keys), **tracked_columns(self.tracked)}


def tracked_by(trackers: Sequence[TrackerConfig], readers: Iterable[Chosen]) -> dict[str, tuple[str, ...]]:
    """Return the key columns of each column of a tracker that components need, by its name.

    Raise UsageError if one needs what no tracker keeps.
    """
    known = {tracker.short: tracker for tracker in trackers}
    found: dict[str, tuple[str, ...]] = {}
    for chosen in readers:
        for need in filter(is_tracked, chosen.needs or ()):
            tracker = known.get(need.partition(".")[0])
            if tracker is None or (tracker.keeps and need not in tracker.keeps):
                raise _unkept(chosen, need, tracker)
            found[need] = tracker.by
    return found


def is_tracked(column: str) -> bool:
    """Return whether a column is called as one of a tracker is: NAME.COLUMN.

    >>> is_tracked("spo.value"), is_tracked("plan.n"), is_tracked("value: plan.branch_at")
    (True, False, False)
    """
    name, dot, _ = split_need(column)[1].partition(".")
    return bool(dot) and name not in NO_TRACKER


def _unkept(chosen: Chosen, need: str, tracker: TrackerConfig | None) -> UsageError:
    what, name = f"{chosen.kind} {chosen.label} needs {need}", need.partition(".")[0]
    if tracker is None:
        hint = f'add it: [[trackers]] with name = "{name}" or "FILE.py:{name}"'
        return UsageError(f"{what}, and the recipe has no tracker {name}", hint=hint)
    listed = f"it keeps {', '.join(tracker.keeps)}"
    return UsageError(
        f"{what}, which the tracker {tracker.label} does not keep", hint=did_you_mean(need, tracker.keeps, listed)
    )


TRACKER = Stage(
    "tracker",
    "Keep what a round says for the rounds after it.",
    version=1,
    makes="trackers",
    settings=TrackingConfig,
    reads=lambda settings: settings.reads,
    draws=False,
    verb=False,
    run="gradus.tasks.stages.tracker.stage:run",
)
