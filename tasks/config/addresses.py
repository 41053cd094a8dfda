"""Addresses as settings and variables name them: looked at when they are read, not when somebody calls them."""

import os
from importlib.metadata import entry_points
from pathlib import Path

from gradus.components.addresses import is_address
from gradus.data.errors import UsageError, shortened
from gradus.tasks.config.redaction import hide

_DATABASES = frozenset({"sqlite", "postgresql", "mysql", "mssql"})
_TRACKERS = frozenset({"file", "databricks", "databricks-uc", "uc"})


def check_addresses() -> None:
    """Raise UsageError if a variable names a server by something that is not an address."""
    prefect, tracker = (os.environ.get(name, "") for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI"))
    if prefect and not is_address(prefect):
        raise _refused("PREFECT_API_URL", prefect, "http://127.0.0.1:4200/api")
    if tracker and not _is_tracker(tracker):
        raise _refused("MLFLOW_TRACKING_URI", tracker, "http://127.0.0.1:5000")


def _is_tracker(text: str) -> bool:
    """Return whether MLflow can keep runs there: a server, a database, a folder, or a scheme of an installed plugin."""
    scheme, separator, _ = text.partition(":")
    if scheme in ("http", "https"):
        return is_address(text)
    if not separator:
        return scheme in _TRACKERS or os.sep in text or Path(text).is_dir()
    known = scheme.partition("+")[0] in _DATABASES | _TRACKERS
    return known or scheme in entry_points(group="mlflow.tracking_store").names


def _refused(name: str, value: str, example: str) -> UsageError:
    return UsageError(
        f"{name} is {shortened(hide(value))!r}, not an address", hint=f"write it as {example}, or unset it"
    )
