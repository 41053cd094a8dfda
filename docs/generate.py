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
from itertools import groupby
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
_GREEK = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "kappa",
    "lambda",
    "pi",
    "psi",
    "rho",
    "sigma",
    "tau",
    "theta",
    "omega",
    "Omega",
]
_SYMBOLS = {
    **{name: f"\\{name}" for name in (*_GREEK, "exp", "log", "min", "max")},
    "sum": r"\sum",
    "grad": r"\nabla",
    "KL": r"\mathrm{KL}",
    **{
        name: f"\\operatorname{{{name}}}"
        for name in ["clamp", "clip", "sigmoid", "mean", "std", "sg", "sgn", "logsumexp", "Beta"]
    },
}
_SIGNS = {
    "*": r"\cdot",
    ">=": r"\geq",
    "<=": r"\leq",
    "==": "=",
    "||": r"\parallel",
    "|": r"\vert",
    "..": r"\ldots",
    "<": r"\lt",
    ">": r"\gt",
}
_TOKEN = re.compile(
    r"(?P<code>`[^`]+`)|(?P<indicator>1(?=\[))|(?P<member>in(?= \[))|(?P<text>'s\b|[a-z]+(?:-[a-z]{2,})+|n't)"
    r"|(?P<close>[)\]])|(?P<open>[(\[])|(?P<name>[A-Za-z]+)(?P<digit>\d?)(?P<prime>'(?!s\b))?"
    r"(?:_(?P<below>\{[^}]*\}|[A-Za-z0-9]+(?:\+1)?(?:,[a-z])?))?"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<above>\^(?:-?\w+|\((?:[^()]|\([^()]*\))*\))|\*(?= ?[|)]))"
    r"|(?P<sign>>=|<=|==|\.\.|\|\||[*|<>])|(?P<space>\s+)|(?P<stop>[,;:.?])|(?P<other>.)"
)


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
        "What a recipe names. `file.py:function` stands wherever a name may: see [extending](../extending.md). A row "
        "for each: the formula as it is implemented; the trust, how well the formula is known, and the deviations of "
        "the method of its own paper; the test that verifies it; the methods that use it. Then its settings."
    )
    for kind, found in catalogue().items():
        if kind == "stage":
            continue
        yield from ("", f"## {kind.replace('_', ' ')}", "", *_rows(kind, found))
        for name, component in found.items():
            yield from ("", f"### {name}", "", *_about(component))
            if component["settings"]:
                yield from ("", *_settings(component["settings"]))
            if component["test"]:
                yield from ("", f"Verified by `{component['test']}`.")
            yield from _used_by(_users()[kind, name], component["paper"])


def _rows(kind: str, found: Mapping[str, Component]) -> Iterator[str]:
    """A row for each component of a kind."""
    yield from ("| | formula, or purpose | paper | trust | deviations | verified by | methods |", "|---" * 7 + "|")
    for name, each in found.items():
        users = _users()[kind, name]
        own = next((overlay for overlay in users.values() if overlay.get("paper") == each["paper"] != ""), {})
        formula = formula_of(each["doc"])
        yield (
            "".join(
                f"| {cell} "
                for cell in (
                    f"`{name}`",
                    f"${latex(formula)}$" if formula else _cell(each["what"]),
                    _linked(each["paper"]),
                    own.get("trust", ""),
                    _cell(_plain(own.get("deviates", ""))),
                    f"`{each['test'].rpartition('/')[2]}`" if each["test"] else "",
                    ", ".join(f"`{method}`" for method in users),
                )
            )
            + "|"
        )


def _linked(paper: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", paper)


def _about(component: Component) -> Iterator[str]:
    """The sentence of a component with its paper, and the other paragraphs of its docstring."""
    what, formula = component["what"], formula_of(component["doc"])
    name = what.partition(formula)[0].rstrip(" :") if formula and formula in what else ""
    yield _cell(f"{name}." if name else what) + (f" {_linked(component['paper'])}." if component["paper"] else "")
    for paragraph in component["doc"].split("\n\n")[1:]:
        yield from ("", _plain(paragraph))


def formula_of(doc: str) -> str:
    """Return the first formula of a docstring: SYMBOL = ... behind a colon or first in a sentence, to its end.

    >>> formula_of("GSPO: L_i = -min(s_i A_i, b_i A_i), s_i = exp(mean_t d). It is of arXiv 2507.18071.")
    'L_i = -min(s_i A_i, b_i A_i), s_i = exp(mean_t d)'
    >>> formula_of("Keep problems of which n = 0, or that are new.")
    ''
    """
    sentences = re.split(r"(?<=[.;])\s+(?=[A-Z0-9\"])", " ".join(re.sub(r"[.;]?\n\n", ". ", doc).split()))
    for sentence in sentences:
        if found := re.search(r"(?:^|: )([A-Za-z]\w*(?:\([^)]*\))?'? = .+)", sentence):
            return found[1].rstrip(".; ")
    return ""


def latex(formula: str) -> str:
    r"""Return a formula as LaTeX: names of several letters that are no symbols are words or settings.

    >>> latex("A_i = r_i / (std(r) + std_eps) over groups")
    'A_{i} = r_{i} / ( \\operatorname{std} ( r ) + \\mathtt{std}_{\\mathtt{eps}} ) \\text{ over groups}'
    >>> latex("b_t in [1 - low, 1 + high]")
    'b_{t} \\in [ 1 - \\text{low} , 1 + \\text{high} ]'
    >>> latex("V(s_k+1)^2 >= |pi_ref,t|")
    'V ( s_{k+1} )^{2} \\geq \\vert \\pi_{\\mathrm{ref},t} \\vert'
    """
    parts = list(_symbols(formula))
    for at, (kind, text) in enumerate(parts):  # a space beside a word is one, and so is a stop between two words
        before, *ahead = (part[0] for part in (parts[at - 1], *parts[at + 1 : at + 3]))
        is_space = kind == "space" and "text" in (before, *ahead[:1]) and "sign" not in (before, *ahead[:1])
        if is_space or (kind == "stop" and [before, *ahead] == ["text", "space", "text"]):
            parts[at] = ("text", text)
    found: list[str] = []
    for kind, run in groupby(parts, key=lambda part: part[0]):
        texts = [text for _, text in run]
        if kind == "text":
            found.append(rf"\text{{{''.join(texts)}}}")
        elif kind == "above":
            found[-1] += "".join(texts)
        elif kind != "space":
            found += texts
    return " ".join(found)


def _symbols(formula: str) -> Iterator[tuple[str, str]]:
    """Yield kind and LaTeX of each token: text, math, above (a power), space or stop."""
    for match in _TOKEN.finditer(formula):
        kind, text = str(match.lastgroup), match[0]
        if match["name"]:
            yield _symbol(match, formula)
        elif kind == "code":
            yield "math", _setting(text.strip("`"))
        elif kind in ("indicator", "member"):
            yield "math", {"1": r"\mathbf{1}", "in": r"\in"}[text]
        elif kind == "above":
            power = text[2:-1] if text.startswith("^(") else text[1:] or "*"
            yield "above", f"^{{{latex(power) if power != '*' else power}}}"
        elif kind in ("space", "stop", "text"):
            yield kind, " " if kind == "space" else text
        else:
            yield "sign" if kind in ("sign", "other") else kind, _SIGNS.get(text, text)


def _symbol(match: re.Match[str], formula: str) -> tuple[str, str]:
    name, below, digit = match["name"], match["below"], match["digit"]
    if digit and len(name) == 1:
        return "math", f"{name}_{{{','.join(filter(None, (digit, below)))}}}"
    if digit or below in ("eps", "kl"):
        return ("math", _setting(match[0])) if below else ("text", match[0])
    article = name == "a" and not below and re.match(r" [a-z]{2,}(?<! is)(?<! of)\b", formula[match.end() :])
    if (len(name) == 1 and not article) or name in _SYMBOLS:
        return "math", _SYMBOLS.get(name, name) + (match["prime"] or "") + (
            f"_{{{_below(below.strip('{}'))}}}" if below else ""
        )
    if below:
        return "math", _setting(match[0])
    return "text", match[0]


def _below(text: str) -> str:
    """A subscript: words upright, single letters as symbols."""
    return re.sub(r"[A-Za-z]{3,}", r"\\mathrm{\g<0>}", text)


def _setting(name: str) -> str:
    """A name in type: what follows an underscore is below, since Markdown takes an escaped one for its own."""
    first, *others = (f"\\mathtt{{{part}}}" for part in name.split("_"))
    return first + (f"_{{{' '.join(others)}}}" if others else "")


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
