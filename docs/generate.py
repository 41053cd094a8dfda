"""Write the reference pages of docs/reference from the code: command line, recipe, components, tables.

python docs/generate.py             # `make docs` does, and builds the site
python docs/generate.py --check     # exit 1 and the page's name if one is not what the code says
"""

import argparse
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from gradus.components.registry import SETTINGS
from gradus.data.lake.schema import TABLES
from gradus.flows.cli.main import app
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.overlays import overlay_files
from gradus.tasks.inspect.catalogue import Component, Setting, catalogue, settings_of

FOLDER = Path(__file__).parent / "reference"
WRITTEN = "<!-- Written by docs/generate.py. -->"


def pages() -> dict[str, str]:
    """Every reference page by file name."""
    return {
        "cli.md": _page("Command line", _verbs()),
        "recipe.md": _page("Recipe", _recipe()),
        "components.md": _page("Components", _components()),
        "tables.md": _page("Tables", _tables()),
    }


def _page(title: str, lines: Iterator[str]) -> str:
    return "\n".join([WRITTEN, f"# {title}", "", *lines]).rstrip() + "\n"


def _verbs() -> Iterator[str]:
    yield "Exit status: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C."
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for name in sorted(group.commands):
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "110", "NO_COLOR": "1"}, prog_name="gradus")
        text = "\n".join(line.rstrip() for line in shown.stdout.strip().splitlines())
        yield from ("", f"## gradus {name}", "", "```text", text, "```")


def _recipe() -> Iterator[str]:
    yield "Keys of a recipe, a TOML file; `gradus train RECIPE --set KEY=VALUE` changes one. Unknown keys are refused."
    yield from ("", *_settings(settings_of(Recipe)))


def _components() -> Iterator[str]:
    yield (
        "What a recipe names. `file.py:function` stands wherever a name may: see [extending](../extending.md). Of "
        "each: the formula as it is implemented, its settings, the test that verifies it, and the methods that use it. "
        "Those "
        "of its own paper have their trust, how well the formula is known, and what they do otherwise."
    )
    for kind, found in catalogue().items():
        if kind == "stage":
            continue
        yield from ("", f"## {kind.replace('_', ' ')}")
        for name, component in found.items():
            yield from ("", f"### {name}", "", *_about(component))
            if component["settings"]:
                yield from ("", *_settings(component["settings"]))
            if component["test"]:
                yield from ("", f"Verified by `{component['test']}`.")
            yield from _used_by(_users()[kind, name], component["paper"])


def _about(component: Component) -> Iterator[str]:
    """The sentence of a component with its paper, its formula, and the other paragraphs of its docstring."""
    linked = re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", component["paper"])
    what, formula = component["what"], formula_of(component["doc"])
    name = what.partition(formula)[0].rstrip(" :") if formula and formula in what else ""
    yield _cell(f"{name}." if name else what) + (f" {linked}." if component["paper"] else "")
    if formula:
        yield from ("", "```text", formula, "```")
    for paragraph in component["doc"].split("\n\n")[1:]:
        yield from ("", _plain(paragraph))


def formula_of(doc: str) -> str:
    """Return the first formula of a docstring: SYMBOL = ... behind a colon or first in a sentence, to its end.

    >>> formula_of("GSPO: L_i = -min(s_i A_i, b_i A_i), s_i = exp(mean_t d). It is of arXiv 2507.18071.")
    'L_i = -min(s_i A_i, b_i A_i), s_i = exp(mean_t d)'
    >>> formula_of("Keep problems of which n = 0, or that are new.")
    ''
    """
    sentences = re.split(r"(?<=[.;])\s+(?=[A-Z])|\n\n", " ".join(doc.replace("\n\n", ". ").split()))
    for sentence in sentences:
        if found := re.search(r"(?:^|: )([A-Za-z]\w*(?:\([^)]*\))?'? = .+)", sentence):
            return found[1].rstrip(". ")
    return ""


def _plain(text: str) -> str:
    """A paragraph in which nothing is markup but what stands in backticks."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_|<\[\]])", r"\\\1", part) for part in parts)


def _used_by(users: Mapping[str, Mapping[str, Any]], paper: str) -> Iterator[str]:
    """The methods that use a component: those of its paper a line each, the names of the others."""
    for method, overlay in users.items():
        if paper and overlay.get("paper") == paper:
            differs = f" Deviations: {_plain(overlay['deviates'])}." if overlay.get("deviates") else ""
            what = f"{_plain(overlay['what'])}. Trust: {overlay.get('trust', 'unknown')}.{differs}"
            yield from ("", f"Method `{method}`: {what}")
    others = [f"`{method}`" for method, overlay in users.items() if not paper or overlay.get("paper") != paper]
    if others:
        yield from ("", f"Used by {', '.join(others)}.")


@cache
def _users() -> Mapping[tuple[str, str], dict[str, Mapping[str, Any]]]:
    """The overlays that name a component, by its kind and name."""
    found = defaultdict[tuple[str, str], dict[str, Mapping[str, Any]]](dict)
    for method, file in overlay_files().items():
        overlay = tomllib.loads(Path(file).read_text(encoding="utf-8"))
        for each in _named(overlay):
            found[each][method] = overlay
    return found


def _named(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Kind and name of every component that settings name, wherever they stand."""
    kinds = {setting.removesuffix(".0").rpartition(".")[2]: kind for kind, setting in SETTINGS.items()}
    kind = kinds.get(key.rpartition(".")[2])
    if isinstance(settings, list):
        for each in settings:
            yield from _named(each, key)
    elif isinstance(settings, dict):
        if kind and "name" in settings:
            yield kind, settings["name"]
        for name, each in settings.items():
            yield from _named(each, name)
    elif kind and isinstance(settings, str):
        yield kind, settings


def _settings(settings: Mapping[str, Setting]) -> Iterator[str]:
    yield from ("| key | type | default | |", "|---|---|---|---|")
    for key, each in settings.items():
        yield f"| `{key}` | {_cell(each['type'])} | `{_cell(each['default'])}` | {_cell(each['what'])} |"


def _tables() -> Iterator[str]:
    yield "Columns marked * are what a file of yours must have; others may be missing, and columns of its own are kept."
    for title, table in TABLES.items():
        if not table.columns:
            what = "[those of its tracker](../extending.md#what-a-tracker-remembers): its keys, and NAME.COLUMN"
            yield from ("", f"## {title}", "", f"Key and columns are {what}.")
            continue
        yield from ("", f"## {title}", "", f"Key: {', '.join(f'`{each}`' for each in table.key)}.", "")
        yield from ("| column | type | |", "|---|---|---|")
        for column in table.columns:
            name = f"`{column.name}`{' *' if column.required else ''}"
            kind = ", ".join(filter(None, (str(column.type), column.bounds)))
            yield f"| {name} | {_cell(kind)} | {_cell(column.doc)} |"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Write the pages, or compare them with what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = FOLDER / name
        if check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            sys.exit(f"{path} is not what the code says: python docs/generate.py")
        if not check:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
