"""Programs of a model, run where they can reach nothing."""

from gradus.models.sandbox.inside.cell import SEARCHED
from gradus.models.sandbox.launchers import NEEDED, SandboxUnavailableError, confined, way_here
from gradus.models.sandbox.sandbox import Answered, Cell, Limits, Program, Ran, Sandbox, run_tests

__all__ = [
    "NEEDED",
    "SEARCHED",
    "Answered",
    "Cell",
    "Limits",
    "Program",
    "Ran",
    "Sandbox",
    "SandboxUnavailableError",
    "confined",
    "run_tests",
    "way_here",
]
