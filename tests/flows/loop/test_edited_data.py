"""Edited data is another run, and that is said; a run of an earlier version goes on."""

import json
from pathlib import Path

import pytest

from gradus.data.errors import UsageError
from gradus.flows.loop.inputs import as_run, on_other_data, run_name
from gradus.flows.recipe.config import Recipe, changed_files, same_run
from gradus.flows.recipe.reading import load_recipe
from gradus.flows.session import RunSpec, guard
from gradus.tasks.runs.records import RunSettings
from gradus.tasks.runs.run_settings import write_settings


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "train.jsonl"
    file.write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    return file


def recipe(data: Path) -> Recipe:
    return as_run(load_recipe("demo", [f"problems={data}", "evaluate.problems=bundled:heldout"]))


def stored(folder: Path, recipe: Recipe) -> RunSettings:
    body: RunSettings = {"verb": "train", "seed": recipe.seed, "recipe": recipe.model_dump(mode="json")}
    write_settings(folder, body)
    return body


def test_an_edited_file_makes_another_run_and_the_sentence_names_file_and_run(data: Path, tmp_path: Path) -> None:
    before = recipe(data)
    folder = tmp_path / run_name(before)
    folder.mkdir()
    stored(folder, before)
    assert on_other_data(tmp_path, recipe(data)) == ""
    data.write_text('{"question": "1 + 2 =", "answer": "3"}\n')
    after = recipe(data)
    assert run_name(after) != run_name(before)
    said = f"{data} changed since {folder.name} began: this is another run, {run_name(after)}"
    assert on_other_data(tmp_path, after) == said
    named = RunSpec(folder.name, "train", after.seed, {"recipe": after.model_dump(mode="json")})
    with pytest.raises(UsageError, match=f"^{data} changed since run {folder.name} began; the recipe without --run"):
        guard(folder, named)
    other = as_run(load_recipe("demo", [f"problems={data}", "evaluate.problems=bundled:heldout", "update.lr=1e-3"]))
    assert on_other_data(tmp_path, other) == ""


def test_a_run_that_does_not_know_what_its_files_held_goes_on_and_knows_then(data: Path, tmp_path: Path) -> None:
    now = recipe(data)
    old = now.model_copy(update={"files": {}})
    assert same_run(old, now)
    stored(tmp_path, old)
    guard(tmp_path, RunSpec("old", "train", now.seed, {"recipe": now.model_dump(mode="json")}))
    kept = json.loads((tmp_path / "run.json").read_text())["recipe"]
    assert kept["files"] == now.files
    assert changed_files(old.model_dump(mode="json"), kept) == []
