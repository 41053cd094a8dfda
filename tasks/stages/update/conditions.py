"""Deterministic algorithms while the steps of an update are taken."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch

from gradus.data.errors import StageError

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
