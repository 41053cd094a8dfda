"""Write the reference pages of docs/reference from the code: command line, recipe, components, tables.

python docs/generate.py             # `make docs` does, and builds the site
python docs/generate.py --check     # exit 1 and the page's name if one is not what the code says
"""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from gradus.data.lake.schema import TABLES
from gradus.flows.cli.main import app
from gradus.flows.recipe.config import Recipe
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
    yield "What a recipe names. `file.py:function` stands wherever a name may: see [extending](../extending.md)."
    for kind, found in catalogue().items():
        if kind == "stage":
            continue
        yield from ("", f"## {kind.replace('_', ' ')}")
        for name, component in found.items():
            yield from ("", f"### {name}", "", _about(component))
            if component["settings"]:
                yield from ("", *_settings(component["settings"]))


def _about(component: Component) -> str:
    paper = component["paper"]
    linked = re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)
    return _cell(component["what"]) + (f" {linked}." if paper else "")


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
