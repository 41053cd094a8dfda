"""Files of a user's that were seen to be loaded by names computed at run time, kept beside the lake.

    remember("late", source_sha256, folder, {"helper": "/home/me/rewards/helper.py"})
    remembered("late", source_sha256, folder)      # {"helper": Path("/home/me/rewards/helper.py")}

`late` is what a component or a reward loaded while it computed: it counts from the next command on. `loaded` is what a
reward loads as its file is run, for dry runs, which read files and run none.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from gradus.data.files import replace_file
from gradus.tasks.config.settings import Home

When = Literal["late", "loaded"]


def remembered(when: When, source_sha256: str, folder: Path) -> dict[str, Path]:
    """Return name and file of what a file with this content loaded; relative paths start at the file's folder."""
    memory = _memory(when, source_sha256)
    if not memory.is_file():
        return {}
    found: dict[str, str] = json.loads(memory.read_text())
    return {name: folder / path for name, path in found.items()}


def remember(when: When, source_sha256: str, folder: Path, modules: Mapping[str, str]) -> None:
    """Keep what a file with this content loaded, in place of what was kept before."""
    if modules == {name: str(path) for name, path in remembered(when, source_sha256, folder).items()}:
        return
    relative = {
        name: str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path
        for name, path in modules.items()
    }
    memory = _memory(when, source_sha256)
    memory.parent.mkdir(parents=True, exist_ok=True)
    replace_file(memory, json.dumps(relative, indent=1, sort_keys=True))


def remember_late(source_sha256: str, folder: Path, modules: Mapping[str, str]) -> None:
    """Add what a file with this content loaded late to what it was seen to load late before."""
    known = {name: str(path) for name, path in remembered("late", source_sha256, folder).items()}
    remember("late", source_sha256, folder, {**known, **modules})


def _memory(when: When, source_sha256: str) -> Path:
    return Home.from_environment().root / f"{when}_modules" / f"{source_sha256}.json"
