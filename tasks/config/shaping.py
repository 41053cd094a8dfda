"""The stage shape: its declaration and settings."""

from collections.abc import Mapping

from pydantic import Field

from gradus.components.chosen import ShapeConfig
from gradus.components.settings import Config, empty
from gradus.components.stage import Stage
from gradus.data.lake.schema import OF_MARKS, OF_PARTS, OF_PLAN, OF_PROBLEM
from gradus.tasks.config.round_columns import round_columns, tracked_columns
from gradus.tasks.config.trackers import is_tracked

_ALWAYS = ("origin", "reward", "correct", "parent", "replaces")


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
        named = [
            *_ALWAYS,
            *(["role"] if self.role else []),
            *self.carried,
            *(name for each in needs for name in each or ()),
        ]
        keys = [key for by in self.tracked.values() for key in by]
        columns = round_columns(None if None in needs else named, keys=keys)
        return {**columns, **tracked_columns(self.tracked)}


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
