"""`run.json` of a run: its verb, its seed, its recipe if it has one, with a digest of them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from gradus.data.errors import CorruptArtifactError, OnDamage, refuse
from gradus.data.files import replace_file
from gradus.data.records import JsonObject
from gradus.tasks.runs.records import RunSettings

RUN = "run.json"
_CHECK = "check"
_SHA256 = "sha256:"
_WRITTEN = "run the same command again: it writes that file anew, and what is finished is reused"
_REWRITTEN = f"delete that file and {_WRITTEN}"


def write_settings(folder: Path, settings: Mapping[str, object]) -> None:
    """Write `run.json`: what identifies a run, with a digest of it."""
    body = json.loads(json.dumps(settings))
    replace_file(folder / RUN, json.dumps({**body, _CHECK: _settings_check(body)}, indent=1, sort_keys=True))


def read_settings(folder: Path, on_damage: OnDamage = refuse) -> RunSettings:
    """Return the settings of a run from `run.json`: its verb, its seed, its recipe if it has one.

    It is damage if it is not what was written; where that raises nothing, the verb is a question mark.
    """
    path = folder / RUN
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        body = None
    except FileNotFoundError:
        on_damage(CorruptArtifactError(f"{folder} has a journal and no {RUN}", hint=_WRITTEN))
        return {"verb": "?"}
    if not isinstance(body, dict) or not isinstance(body.get("verb"), str):
        on_damage(CorruptArtifactError(f"{path} does not say what the run is", hint=_REWRITTEN))
        return {"verb": "?"}
    checks = [key for key, value in body.items() if key == _CHECK or str(value).startswith(_SHA256)]
    check = body.pop(_CHECK, None)
    if checks and (checks != [_CHECK] or check != _settings_check(body)):
        on_damage(CorruptArtifactError(f"{path} is not what was written there", hint=_REWRITTEN))
        return {"verb": "?"}
    return cast("RunSettings", body)


def _settings_check(settings: JsonObject) -> str:
    return _SHA256 + hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
