"""Lakes written by earlier versions are brought up to date once, when they are opened.

    store = open_lake(Path("lake"), print)     # says in a sentence what was changed, if anything was

Schema 1 -> 2: `manifest.json` becomes `_manifest.json` with a digest of itself, and `report.json` becomes
`_report.json`, listed with its digest. Rows are left as they are, and the artifacts keep their names: `schema_version`
stays 1, and what their digest was computed from is known in part only, so no stage reuses them.
Interrupted at any point, the next opening goes on. Left out: lakes that an earlier version is writing at the time.
"""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gradus.data.files import replace_file
from gradus.data.lake.manifest import FILE_NAME, REPORT, FileEntry, Manifest, sha256_file
from gradus.data.lake.schema import SCHEMA_VERSION
from gradus.data.lake.store import Store

_MARKER = "_lake.json"
_OLD_MANIFEST, _OLD_REPORT = "manifest.json", "report.json"


def open_lake(root: Path, say: Callable[[str], None]) -> Store:
    """Return the store of a lake, brought up to date; `say` gets a sentence if that changed anything."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / _MARKER).exists():
        with (root / ".upgrade.lock").open("a", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            sentence = upgrade(root)
            replace_file(root / _MARKER, json.dumps({"schema": SCHEMA_VERSION}), durable=True)
        if sentence:
            say(sentence)
    return Store(root)


def upgrade(root: Path) -> str:
    """Bring every artifact of a lake up to date and return the sentence about it; empty if there was nothing to do."""
    unreadable: list[Path] = []
    num_upgraded = 0
    for path in sorted(root.glob(f"*/*/{_OLD_MANIFEST}")):
        try:
            _upgrade_artifact(path.parent, json.loads(path.read_bytes()))
            num_upgraded += 1
        except (ValueError, KeyError, TypeError, ValidationError, RecursionError):
            unreadable.append(path)
    said: list[str] = []
    if num_upgraded:
        said.append(
            f"{num_upgraded} artifacts of an earlier version were brought up to date: "
            "their manifests and reports now carry digests"
        )
    if unreadable:
        said.append(f"{len(unreadable)} manifests could not be read and were left alone (first: {unreadable[0]})")
    return "; ".join(said)


def _upgrade_artifact(folder: Path, old: dict[str, Any]) -> None:
    if (old["table"], old["digest"]) != (folder.parent.name, folder.name):
        raise ValueError("it is that of another folder")
    entries = [FileEntry(**{key: f.get(key) for key in FileEntry.model_fields}) for f in old["files"]]
    if (folder / _OLD_REPORT).exists():
        os.replace(folder / _OLD_REPORT, folder / REPORT)
    if (folder / REPORT).exists():
        report = folder / REPORT
        entries.append(FileEntry(name=REPORT, sha256=sha256_file(report), bytes=report.stat().st_size))
    manifest = Manifest(
        table=old["table"],
        digest=old["digest"],
        schema_version=old["schema_version"],
        identity={"schema": 1, "stage": old["stage"], "version": old["stage_version"], "seed": old["seed"]},
        config=old.get("config", {}),
        parents=old.get("parents", {}),
        versions=old.get("versions", {}),
        files=tuple(sorted(entries, key=lambda entry: entry.name)),
    )
    replace_file(folder / FILE_NAME, manifest.sealed().to_bytes(), durable=True)
    (folder / _OLD_MANIFEST).unlink()
