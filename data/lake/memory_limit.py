"""DuckDB within a limit of memory: what exceeds it lies in a folder that is gone afterwards."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import duckdb

from gradus.data.errors import GradusError
from gradus.data.runlock import left_by_the_dead, run_lock

_SPILL = ".spill-"
_THREAD_BYTES = 50_000_000
"""Memory that a thread needs for itself, however much lies on the disk."""


@dataclass(frozen=True)
class MemoryLimit:
    """Bytes that a database may hold, and the folder in which the rest lies, in one of its own, until it is closed.

    None: DuckDB's own limit, 80 % of the memory that the process may use; and its own folder, `.tmp`.
    """

    limit_bytes: int | None = None
    folder: Path | None = None

    @contextlib.contextmanager
    def database(self) -> Generator[duckdb.DuckDBPyConnection]:
        """Return an empty database; raise GradusError if a query in the block needs more than there is.

        What a process that was killed left in the folder is removed.
        """
        config = dict[str, str | bool | int | float | list[str]]()
        if self.limit_bytes is not None:
            config["memory_limit"] = f"{self.limit_bytes}B"
            config["threads"] = max(1, min(os.cpu_count() or 1, self.limit_bytes // _THREAD_BYTES))
        with _spill(self.folder) as folder:
            if folder:
                config["temp_directory"] = folder
            try:
                with duckdb.connect(":memory:", config=config) as database:
                    database.execute("SET enable_progress_bar = false")
                    yield database
            except (duckdb.OutOfMemoryException, OSError) as error:
                # Arrow's readers say it by an OSError.
                if isinstance(error, OSError) and not str(error).startswith("Out of Memory"):
                    raise
                held = "the memory" if self.limit_bytes is None else f"{self.limit_bytes / 1e9:g} GB of memory"
                message = f"a query needs more than {held}, or more than is free where the home lies"
                raise GradusError(message, hint="raise GRADUS_MEMORY_GB, or free some disk space") from error


@contextlib.contextmanager
def _spill(folder: Path | None) -> Generator[str]:
    if folder is None:
        yield ""
        return
    for left in filter(left_by_the_dead, folder.glob(f"{_SPILL}*")):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_SPILL, dir=folder) as name, run_lock(Path(name)):
        yield name
