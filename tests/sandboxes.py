"""Sandboxes of tests. A machine without user namespaces and without bubblewrap leaves these tests out, and says why."""

import pytest

from gradus.models.sandbox import Limits, Sandbox, SandboxUnavailableError, available_backend, launchers

MIB = 1024 * 1024
SMALL = Limits(memory_bytes=128 * MIB, disk_bytes=16 * MIB, output_bytes=64 * 1024, num_processes=16)


def _missing() -> str:
    try:
        available_backend()
    except SandboxUnavailableError as error:
        return str(error)
    return ""


MISSING = _missing()
needs_sandbox = pytest.mark.skipif(bool(MISSING), reason=f"this machine has no sandbox: {MISSING}")


def only(backend: type) -> Sandbox:
    """A small sandbox that may use this backend alone; SandboxUnavailableError without it."""
    backends = launchers.BACKENDS
    launchers.BACKENDS = (backend,)
    try:
        return Sandbox(SMALL)
    finally:
        launchers.BACKENDS = backends
