"""Policies as named on the command line: a folder, or an id on a hub that may not answer."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.store import Store
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.preflight.checks import SAMPLES
from tests.tasks.written_lake import WrittenHome


def test_a_folder_becomes_a_checkpoint_with_the_bytes_of_its_files(store: Store) -> None:
    ref = resolve_artifact(store, str(SAMPLES / "policy"), "checkpoints")
    assert resolve_artifact(store, "bundled", "checkpoints") == ref
    assert {f.name for f in store.verify(ref).files} == {p.name for p in (SAMPLES / "policy").iterdir()}
    for path in (SAMPLES / "policy").iterdir():
        assert (store.path(ref) / path.name).read_bytes() == path.read_bytes()


def test_a_hub_id_needs_its_revision(store: Store) -> None:
    with pytest.raises(UsageError, match="needs its revision; write someone/model@<commit>"):
        resolve_artifact(store, "someone/model", "checkpoints")


def test_a_hub_that_does_not_answer_is_a_sentence(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(BadInputError, match=r"someone/model@0123 cannot be fetched.*give a local folder instead"):
        resolve_artifact(store, "someone/model@0123", "checkpoints")


def test_a_table_of_other_types_is_refused_at_the_door(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    row = {"problem_id": "p", "completion": "4"}
    for odd, said in (
        ({"answer": ["4"]}, "mine.jsonl line 1: answer is a list; write a text or a number"),
        ({"hint_level": "high"}, "hint_level is 'high'; write a whole number from 0 to"),
    ):
        file.write_text(json.dumps({**row, **odd}) + "\n")
        with pytest.raises(BadInputError, match=said):
            resolve_artifact(store, str(file), "rollouts")
    old = WrittenHome(tmp_path)
    ref = old.artifact("problems/" + "1" * 32, [{"problem_id": "p", "question": "?", "answer": ["4"]}])
    with pytest.raises(BadInputError, match=r"is no table of problems: its column answer is not text"):
        resolve_artifact(Store(tmp_path / "other"), str(tmp_path / "lake" / ref), "problems")
