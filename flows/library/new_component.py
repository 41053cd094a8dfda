"""`gradus new`: a component of the user's own with its test and its method (new_component.toml), ready to run."""

import keyword
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.components import KINDS, Kind
from gradus.components.registry import SETTINGS
from gradus.data.errors import UsageError
from gradus.data.nearest import did_you_mean

_TEMPLATES = Path(__file__).with_suffix(".toml")
_HEAD = 'what = "its effect in one line"\npaper = ""\ntrust = "guess"\ndeviates = ""\n\n'
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


def write_component(kind: str, name: str, folder: Path) -> list[Path]:
    """Write NAME.py, test_NAME.py and NAME.toml into a folder; UsageError for another kind or name, or a file there."""
    if kind not in KINDS:
        raise UsageError(f"there is no kind of component {kind!r}", hint=did_you_mean(kind, KINDS))
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
    template = tomllib.loads(_TEMPLATES.read_text(encoding="utf-8"))[kind]
    function, test = template["function"], template["test"]
    named = f'"{name}.py:{name}"'
    *sections, key = ["update", "lr"] if kind == "schedule" else SETTINGS[kind].removesuffix(".0").split(".")
    value = (
        f"{{ schedule = {named} }}" if kind == "schedule" else f"[{named}]" if SETTINGS[kind].endswith(".0") else named
    )
    section = f"[{sections[0]}]\n" if sections else ""
    texts = {
        f"{name}.py": f'"""The {kind} {name}."""\n\n{_imports(kind, function)}\n{function}',
        f"test_{name}.py": f'"""{name} against numbers by hand."""\n\n{_imports(kind, test)}'
        f"from {name} import {name}\n\n\ndef test_{name}() -> None:\n{test}",
        f"{name}.toml": f"{_HEAD}{section}{key} = {value}\n",
    }
    return {file: text.replace("NAME", name) for file, text in texts.items()}


def _imports(kind: Kind, text: str) -> str:
    """Return the imports of the names that a text uses: first Python's, then those of packages."""
    rows = (
        "gradus.components.rows"
        if kind in ("filter", "ranking", "sampler", "measure", "shape")
        else "gradus.models.objectives.rows"
    )
    groups: Sequence[Mapping[str, str]] = (
        {"from types": "SimpleNamespace", "from typing": "Annotated"},
        {
            "import numpy as np": "np",
            "import pyarrow as pa": "pa",
            "import torch": "torch",
            "from annotated_types": "Ge Gt Le",
            "from gradus.components": "component",
            f"from {rows}": "Rows",
            "from gradus.data.curation.results": "Draw selection",
            "from gradus.data.curation.round": "Round first_rows round_of",
            "from gradus.data.curation.tracked": "Tracked",
            "from gradus.models.measuring": "Model",
            "from gradus.data.schedules.progress": "Progress",
        },
    )
    words, found = set(re.findall(r"\w+", text)), ""
    for group in groups:
        used = {line: [name for name in names.split() if name in words] for line, names in group.items()}
        lines = [
            f"{line} import {', '.join(names)}" if "from" in line else line for line, names in used.items() if names
        ]
        found += "".join(f"{line}\n" for line in lines) + "\n" * bool(lines)
    return found
