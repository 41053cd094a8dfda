"""What `gradus new` writes runs as it stands: its test, and a recipe that its method is laid over."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradus.components import KINDS, Kind
from gradus.components.registry import SETTINGS
from gradus.data.errors import UsageError
from gradus.flows.cli.main import app
from gradus.flows.library.new_component import write_component
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.reading import load_recipe


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_component_passes_its_test_and_is_taken_by_a_run(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"mine_{kind}"
    write_component(kind, name, tmp_path)
    try:
        getattr(importlib.import_module(f"test_{name}"), f"test_{name}")()
    finally:
        for module in (name, f"test_{name}"):
            sys.modules.pop(module, None)
    recipe = load_recipe("demo", [], [f"{name}.toml"])
    check_recipe(recipe, tmp_path / "lake")
    section, _, _ = SETTINGS[kind].partition(".")
    assert f"{name}.py:{name}" in json.dumps(recipe.model_dump(mode="json")[section])


def test_the_verb_says_what_it_wrote_and_how_to_try_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", "weight", "rare", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {
        "files": ["rare.py", "test_rare.py", "rare.toml"],
        "test": "pytest test_rare.py",
        "try": "gradus train demo --method rare.toml --dry-run",
    }
    assert {path.name for path in tmp_path.iterdir()} == {"rare.py", "test_rare.py", "rare.toml"}


def test_nothing_is_overwritten_and_wrong_words_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rare.toml").write_text("mine")
    with pytest.raises(UsageError, match=r"rare\.toml is there already, and is not overwritten"):
        write_component("loss", "rare", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["rare.toml"]
    with pytest.raises(UsageError, match="there is no kind of component 'los'") as refused:
        write_component("los", "rare", tmp_path)
    assert "loss" in refused.value.hint
    for name in ("Rare", "../rare", "1st", "", "a-b", "rare.py", "lambda", "math"):
        with pytest.raises(UsageError, match="cannot name a component"):
            write_component("loss", name, tmp_path)
