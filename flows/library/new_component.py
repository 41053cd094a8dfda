"""`gradus new`: a component of the user's own with its test and its method, which run as they stand."""

import keyword
import re
import sys
from pathlib import Path

from gradus.components import KINDS, Kind
from gradus.components.registry import SETTINGS
from gradus.data.errors import UsageError
from gradus.data.nearest import did_you_mean
from gradus.flows.library.templates import TEMPLATES

_HEAD = 'what = "its effect in one line"\npaper = ""\ntrust = "guess"\ndeviates = ""\n\n'
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def write_component(kind: str, name: str, folder: Path) -> list[Path]:
    """Write NAME.py, test_NAME.py and NAME.toml into a folder; UsageError for another kind or name, or a file there."""
    if kind not in KINDS:
        listed = f"it is one of {', '.join(KINDS)}"
        raise UsageError(f"there is no kind of component {kind!r}", hint=did_you_mean(kind, list(KINDS), listed))
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in sys.stdlib_module_names:
        hint = "take lower-case letters, digits and _, a letter first, and no word or module of Python's"
        raise UsageError(f"{name!r} cannot name a component", hint=hint)
    texts = _texts(kind, name)
    if there := [file for file in texts if (folder / file).exists()]:
        raise UsageError(f"{there[0]} is there already, and is not overwritten", hint="take another name")
    for file, text in texts.items():
        with (folder / file).open("x", encoding="utf-8") as opened:
            opened.write(text)
    return [folder / file for file in texts]


def _texts(kind: Kind, name: str) -> dict[str, str]:
    """The text of each file by its name."""
    found = TEMPLATES[kind]
    section, key, *listed = SETTINGS[kind].split(".")
    value = f'["{name}.py:{name}"]' if listed else f'"{name}.py:{name}"'
    imports = f"{found.test_imports}\n" if found.test_imports else ""
    texts = {
        f"{name}.py": f'"""The {kind} {name}."""\n\n{found.imports}\n{found.function}',
        f"test_{name}.py": f'"""{name} against numbers by hand."""\n\n{imports}'
        f"from {name} import {name}\n\n\ndef test_{name}() -> None:{found.test}",
        f"{name}.toml": f"{_HEAD}[{section}]\n{key} = {value}\n",
    }
    return {file: text.replace("NAME", name) for file, text in texts.items()}
