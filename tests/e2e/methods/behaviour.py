"""The defining behaviour of each method of recipes/methods, by name, as a check of what a run of it wrote."""

from collections.abc import Mapping

from tests.e2e.methods.asked import ASKED_METHODS
from tests.e2e.methods.curating import CURATING_METHODS
from tests.e2e.methods.given import GIVEN_METHODS
from tests.e2e.methods.groups import GROUP_METHODS
from tests.e2e.methods.judging import JUDGING_METHODS
from tests.e2e.methods.learning import LEARNING_METHODS
from tests.e2e.methods.lengths import LENGTH_METHODS
from tests.e2e.methods.objectives import Check
from tests.e2e.methods.programs import PROGRAM_METHODS
from tests.e2e.methods.shaping import SHAPING_METHODS
from tests.e2e.methods.tasks import TASK_METHODS
from tests.e2e.methods.waves import WAVE_METHODS

BEHAVIOUR: Mapping[str, Check] = {
    **LEARNING_METHODS,
    **GIVEN_METHODS,
    **GROUP_METHODS,
    **SHAPING_METHODS,
    **LENGTH_METHODS,
    **CURATING_METHODS,
    **WAVE_METHODS,
    **JUDGING_METHODS,
    **ASKED_METHODS,
    **TASK_METHODS,
    **PROGRAM_METHODS,
}
"""Each raises AssertionError unless a run has the behaviour."""
