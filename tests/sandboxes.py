"""A machine without user namespaces and without bubblewrap runs no programs: their tests say so and are left out."""

import pytest

from gradus.models.sandbox import SandboxUnavailableError, way_here


def _missing() -> str:
    try:
        way_here()
    except SandboxUnavailableError as error:
        return str(error)
    return ""


MISSING = _missing()
needs_sandbox = pytest.mark.skipif(bool(MISSING), reason=f"this machine has no sandbox: {MISSING}")
