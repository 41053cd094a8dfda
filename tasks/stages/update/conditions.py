"""What holds while the steps of an update are taken: deterministic algorithms, a profiler's trace.

with deterministic(wanted=True), profiled(folder / "trace.json.gz") as after_step:
...
after_step()
"""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from gradus.data.errors import StageError

PROFILED_STEPS = 3
"""Optimiser steps that are profiled; a trace grows by some hundred bytes for every operation."""
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
_REFUSAL = "does not have a deterministic implementation"


@contextmanager
def deterministic(*, wanted: bool) -> Generator[None]:
    """Let PyTorch choose deterministic algorithms for a while; StageError if an operation has none.

    On a GPU cuBLAS needs a workspace of fixed size, which PyTorch reads from the environment.
    """
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warning = torch.is_deterministic_algorithms_warn_only_enabled()
    sets_workspace = torch.cuda.is_available() and _WORKSPACE not in os.environ
    if sets_workspace:
        os.environ[_WORKSPACE] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if _REFUSAL not in str(error):
            raise
        operation = str(error).partition(_REFUSAL)[0].strip()
        raise StageError(
            f"{operation} {_REFUSAL}", hint="set update.deterministic=false, or update.device=cpu"
        ) from None
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warning)
        if sets_workspace:
            del os.environ[_WORKSPACE]


@contextmanager
def profiled(path: Path | None) -> Generator[Callable[[], None]]:
    """Profile the first steps inside, the function that is returned called after each; write the trace for Chrome.

    None profiles nothing.
    """
    if path is None:
        yield lambda: None
        return
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    profiler = profile(activities=[ProfilerActivity.CPU, *gpu], record_shapes=True)
    left = PROFILED_STEPS

    def after_step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            profiler.stop()

    profiler.start()
    try:
        yield after_step
    finally:
        if left > 0:
            profiler.stop()
        path.unlink(missing_ok=True)
        profiler.export_chrome_trace(str(path))
