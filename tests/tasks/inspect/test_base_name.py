"""What an exported adapter calls its base: by what that was called when it came into the lake."""

from pathlib import Path

import pytest

from gradus.data.lake.store import Store
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.inspect.exchange.checkpoint import name_of, split_name

HUB = "someone/model@1a2b3c"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "lake")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A policy of the user's."""
    found = tmp_path / "model"
    found.mkdir()
    (found / "config.json").write_text("{}")
    (found / "model.safetensors").write_text("weights")
    return found


def test_a_folder_is_the_name_as_long_as_it_has_the_same_files(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    base = resolve_artifact(store, "model", "checkpoints")
    assert name_of(store, base) == str(folder)
    (folder / "model.safetensors").write_text("other weights")
    assert name_of(store, base) == str(store.path(base))
    (folder / "model.safetensors").unlink()
    assert name_of(store, base) == str(store.path(base))


def test_a_model_of_the_hub_keeps_its_name_and_what_has_none_is_called_by_its_path(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradus.tasks.artifacts.resolve._download", lambda _: folder)
    assert name_of(store, resolve_artifact(store, HUB, "checkpoints")) == HUB
    trained = store.adopt_files({"model.safetensors": b"trained"}, {})
    for nameless in (trained, resolve_artifact(store, "bundled", "checkpoints")):
        assert name_of(store, nameless) == str(store.path(nameless))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("someone/model", ("someone/model", None)),
        (HUB, ("someone/model", "1a2b3c")),
        ("/mnt/models@site/one", ("/mnt/models@site/one", None)),
    ],
)
def test_a_name_that_the_user_gives_is_read(text: str, expected: tuple[str, str | None]) -> None:
    assert split_name(text) == expected
