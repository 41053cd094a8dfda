"""Note that Prefect's database has the schema that this version of Prefect wants.

Prefect's server looks through all its migrations at every start, which takes a fifth of the start even if there is
nothing to do. After a successful start the database's revision is saved beside it. If both agree at the next start,
migrations are skipped. Left out: databases other than Prefect's default one, which are always left to Prefect.
"""

import contextlib
import json
import os
import sqlite3
from pathlib import Path

from gradus.data.files import replace_file
from gradus.tasks.host.setting_files import PROFILES

_NOTE = "gradus-migrated.json"
_BUSY_S = 1.0


def is_migrated(prefect_home: Path, version: str) -> bool:
    """Return whether a server of this version brought the database up to date, and it is still of that revision."""
    try:
        noted = json.loads((prefect_home / _NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return _is_default() and noted == _state(prefect_home, version)


def note_migrated(prefect_home: Path, version: str) -> None:
    """Note that a server of this version has started on the database, if it is there, so that it is up to date."""
    state = _state(prefect_home, version)
    if not state["revision"]:
        return
    replace_file(prefect_home / _NOTE, json.dumps(state))


def _state(prefect_home: Path, version: str) -> dict[str, str]:
    return {"prefect": version, "revision": _revision(prefect_home / "prefect.db")}


def _revision(database: Path) -> str:
    """The revision that a database says it has; empty if there is none that can be read."""
    try:
        address = f"{database.resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_BUSY_S)) as connection:
            return ",".join(sorted(row[0] for row in connection.execute("select version_num from alembic_version")))
    except sqlite3.Error:
        return ""


def _is_default() -> bool:
    """Return whether no setting of this environment or of a profile speaks of a database."""
    profiles = Path(os.environ.get(PROFILES) or os.devnull)
    settings = profiles.read_text(encoding="utf-8")
    named = any(name.startswith("PREFECT_") and "DATABASE" in name for name in os.environ)
    return not named and "DATABASE" not in settings.upper()
