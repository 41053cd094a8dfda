"""The stage shape: its declaration and settings."""

from collections.abc import Mapping

from gradus.components.chosen import ShapeConfig
from gradus.components.settings import Config
from gradus.components.stage import Stage
from gradus.data.lake.schema import OF_PARTS, OF_PLAN, OF_PROBLEM
from gradus.tasks.config.round_columns import round_columns

_ALWAYS = ("origin", "reward", "correct")


def is_carried(name: str) -> bool:
    """Return whether a column is one of the problem, the plan or the rewards of a row, kept in the table `batch`.

    >>> is_carried("problem.level"), is_carried("now.logp")
    (True, False)
    """
    return name.startswith((OF_PROBLEM, OF_PLAN, OF_PARTS))


class ShapingConfig(Config):
    """Functions that decide what of the rows of a round is learned from, and columns kept beside them."""

    shapes: tuple[ShapeConfig, ...] = ()
    """The functions, in order."""
    drop_replaced_groups: bool = True
    """Leave out a group of which every rollout failed once its problem was sampled again with a hint."""
    carried: tuple[str, ...] = ()
    """Columns of problems, plan rows and parts of the reward that the objective reads."""

    @property
    def reads(self) -> Mapping[str, tuple[str, ...]]:
        """The columns that the stage reads of rollouts, scores, problems and plan."""
        needs = [each.needs for each in self.shapes]
        if None in needs:
            return round_columns(None)
        return round_columns([*_ALWAYS, *self.carried, *(name for each in needs for name in each or ())])


SHAPE = Stage(
    "shape",
    "Decide which rows of a round an update learns from, with which reward, group and weight.",
    version=1,
    makes="batch",
    settings=ShapingConfig,
    reads=lambda settings: settings.reads,
    verb=False,
    run="gradus.tasks.stages.shape:run",
)
