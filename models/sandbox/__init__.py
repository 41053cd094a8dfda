"""Programs of a model, run where they can reach nothing."""

from gradus.models.sandbox.commands import confined, group_of
from gradus.models.sandbox.groups import Group
from gradus.models.sandbox.inside.cell import SEARCHED
from gradus.models.sandbox.launchers import NEEDED, SandboxUnavailableError
from gradus.models.sandbox.sandbox import (
    Answered,
    Cell,
    CellLostError,
    Limits,
    Program,
    Ran,
    Sandbox,
    available_backend,
    run_tests,
)

__all__ = ["NEEDED", "SEARCHED", "Answered", "Cell", "CellLostError", "Group", "Limits", "Program", "Ran", "Sandbox"]
__all__ += ["SandboxUnavailableError", "available_backend", "confined", "group_of", "run_tests"]
