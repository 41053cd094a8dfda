"""README and docs/: links lead somewhere, commands and settings exist, recipes can be read. Nothing is started."""

import doctest
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.mathtext import MathTextParser
from typer.main import get_command

from gradus.data.curation.candidates import Candidates
from gradus.data.lake.schema import TABLES
from gradus.flows.cli.main import app
from gradus.flows.recipe.reading import load_recipe
from gradus.models.objectives.columns import COLUMNS
from gradus.tasks.inspect.catalogue import catalogue

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
COMMAND = re.compile(r"(?:^ {4}|^\$ |`)(?:\.venv/bin/)?gradus ([a-z][^`\n]*)", re.MULTILINE)
RECIPE = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
DOTTED = re.compile(r"[`\s](rollout|evaluate|update|ingest|vllm|ray|server)\.([a-z_.]+)(?=[`=])")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, in GitHub's way."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@cache
def options(verb: str) -> set[str]:
    """The options of a verb, also short ones."""
    group = get_command(app)
    return {name for option in group.commands[verb].params for name in option.opts}  # type: ignore[attr-defined]


@cache
def settings() -> set[str]:
    """Every setting of a stage, alone and after the stage's name."""
    stages = catalogue()["stage"]
    return {name for stage, found in stages.items() for key in found["settings"] for name in (key, f"{stage}.{key}")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target, anchor in LINK.findall(re.sub("`[^`\\n]*`", "`code`", page.read_text())):
        found = page.parent / target if target else page
        assert found.is_file(), target
        assert not anchor or anchor in anchors(found), anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_verbs_and_options_that_exist(page: Path) -> None:
    for text in COMMAND.findall(page.read_text()):
        verb, *words = shlex.split(text, comments=True)
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert given <= options(verb), text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_named_in_full_exist(page: Path) -> None:
    known = settings() | {"evaluate.problems", "evaluate.suites", "evaluate.select"}
    named = {f"{stage}.{key}" for stage, key in DOTTED.findall(page.read_text())}
    assert named - known == {name for name in named if name.endswith((".toml", ".py"))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_recipes_of_the_pages_can_be_read(page: Path, tmp_path: Path) -> None:
    for number, body in enumerate(RECIPE.findall(page.read_text())):
        file = tmp_path / f"r{number}.toml"
        written = tomllib.loads(body)
        file.write_text(body if "name" in written else f'name = "page"\n{body}')
        found = load_recipe(str(file)).model_dump(mode="json")
        assert written.keys() <= found.keys()


def test_every_page_is_in_the_table_of_the_readme() -> None:
    linked = {target for target, _ in LINK.findall(PAGES[0].read_text())}
    assert {str(page.relative_to(ROOT)) for page in PAGES[1:]} <= linked


def test_the_pages_have_what_is_checked_here() -> None:
    prose = "\n".join(page.read_text() for page in PAGES)
    assert len(COMMAND.findall(prose)) > 30
    assert len(RECIPE.findall(prose)) == 21
    assert len(DOTTED.findall(prose)) > 10


def test_how_it_works_and_the_files_that_it_names_are_short() -> None:
    text = (ROOT / "docs" / "how-it-works.md").read_text()
    names = set(re.findall(r"`((?:flows|tasks|models|data|src|benchmarks)/[\w/]+\.py)`", text))
    sizes = {name: (ROOT / name).read_text().count("\n") for name in names}
    assert len(sizes) > 15
    assert {name: size for name, size in sizes.items() if size >= 300} == {}
    assert text.count("\n") <= 120


def test_reference_pages_are_what_the_code_says() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert set(flat(listed)) == pages
    assert all((tmp_path / page.removesuffix(".md").removesuffix("index")).is_dir() for page in pages)


def flat(nav: Any) -> list[str]:
    """The pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [page for each in inner for page in flat(each)]


@pytest.fixture(scope="module")
def generate() -> Any:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formulas_are_latex_that_another_program_reads(generate: Any) -> None:
    assert doctest.testmod(generate).failed == 0
    page = (ROOT / "docs" / "reference" / "components.md").read_text()
    formulas = re.findall(r"^\| `\w+` \| \$(.*?)\$ \|", page, re.MULTILINE)
    assert len(formulas) > 90
    assert not any(re.search(r"\\[^a-zA-Z]", formula) for formula in formulas)  # Markdown would take it for its own
    for formula in formulas:
        MathTextParser("path").parse("$" + formula.replace(r"\lt", "<").replace(r"\gt", ">") + "$")


def test_the_page_of_components_has_the_formula_the_test_and_the_methods_of_each(generate: Any) -> None:
    parts = (
        generate.pages()["components.md"].partition("\n## loss\n")[2].partition("\n## aggregation\n")[0].split("\n### ")
    )
    of_loss = {part.partition("\n")[0]: part for part in parts}
    rows = {line.split("`")[1]: line for line in parts[0].splitlines() if line.startswith("| `")}
    assert rows.keys() == of_loss.keys() - {parts[0].partition("\n")[0]}
    formula = r"$L_{i} = - \min ( s_{i} A_{i} , b_{i} A_{i} ) , s_{i} = \exp ( \operatorname{mean}_{t}"
    assert formula in rows["gspo"]
    assert "| confirmed |  | `test_sequence.py::" in rows["gspo"]
    assert (
        "\nMethod `gspo`: the likelihood ratio of a whole completion is clipped, not that of each token. Trust: confi"
        in (of_loss["gspo"])
    )
    assert "\nVerified by `tests/models/objectives/test_sequence.py::" in of_loss["gspo"]
    for file in (ROOT / "recipes" / "methods").glob("*.toml"):
        named = re.findall(r'\bloss"? = (?:\{ name = )?"(\w+)"', file.read_text(encoding="utf-8"))
        assert all(f"`{file.stem}`" in of_loss[each] for each in named), file
    assert generate.formula_of("Keep problems of which n = 0. With k = 1 nothing.") == ""


def test_the_page_on_components_names_the_columns_that_each_kind_sees() -> None:
    table = (ROOT / "docs" / "extending.md").read_text().partition("## What each kind sees")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    shown = {kind.strip(): set(re.findall("`(\\w+)`", what)) for kind, _, what in rows}
    rollouts = {column.name for column in TABLES["rollouts"].columns} - {
        "prompt_tokens",
        "completion_tokens",
        "logprobs",
    }
    seen = {
        "filter, ranking, sampler": Candidates.known,
        "hint": [column.name for column in TABLES["problems"].columns],
        "reward": rollouts | {"question", "messages", "answer", "solution", "domain", "source", "extra"},
    }
    assert {kind: shown[kind] for kind in seen} == {kind: set(names) for kind, names in seen.items()}


def test_the_page_on_components_has_the_columns_of_an_objective() -> None:
    table = (ROOT / "docs" / "extending.md").read_text().partition("## What an objective can see")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:3] == "| `"]
    shown = {row[0].strip("`"): (row[1], [bool(cell) for cell in row[2:5]], row[5]) for row in rows[: len(COLUMNS)]}
    places = ("update", "step", "pack")
    assert shown == {n: (c.axis, [place in c.places for place in places], c.doc) for n, c in COLUMNS.items()}
