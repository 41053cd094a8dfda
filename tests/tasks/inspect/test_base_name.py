"""What an exported adapter calls its base, by what the run that made the first adapter on it began with."""

import json
from pathlib import Path

import pytest

from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.exchange.base_name import BaseName, known_name

HUB = "someone/model@1a2b3c"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "lake")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A policy of the user's."""
    found = tmp_path / "model"
    found.mkdir()
    for name in ("config.json", "model.safetensors"):
        (found / name).write_text(name)
    return found


def trained(store: Store, base: Ref, before: Ref | None, name: str) -> Ref:
    """An adapter that an update made of a policy; that of the user's without one."""
    parents = {"base": [str(base)]} if before is None else {"base": [str(base)], "policy": [str(before)]}
    return store.adopt_files({"adapter_model.safetensors": name.encode()}, parents)


def named(store: Store, base: Ref, start: Ref, policy: str) -> str | BaseName:
    """What the second adapter after a start calls the base, by the recipe's policy; `lake` for its path there."""
    first = trained(store, base, start, "first")
    second = trained(store, base, first, "second")
    found = known_name(store, second, base, lambda made: policy if made == first else "")
    return "lake" if found == BaseName(str(store.path(base))) else found


def test_the_base_is_called_as_the_run_called_its_starting_policy(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = store.adopt(folder)
    assert named(store, base, base, str(folder)) == BaseName(str(folder))
    assert named(store, base, base, HUB) == BaseName("someone/model", "1a2b3c")
    for nameless in ("bundled", str(base), "a/folder/of/another/place", ""):
        assert named(store, base, base, nameless) == "lake"
    monkeypatch.chdir(folder.parent)
    assert named(store, base, base, "model") == BaseName(str(folder))
    (folder / "model.safetensors").write_text("other weights")
    assert named(store, base, base, str(folder)) == "lake"
    (folder / "model.safetensors").unlink()
    assert named(store, base, base, str(folder)) == "lake"


def test_the_base_of_an_adapter_of_the_users_is_called_as_that_calls_it(
    store: Store, folder: Path, tmp_path: Path
) -> None:
    base = store.adopt(folder)
    start = trained(store, base, None, "of the user's")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = adapter / "adapter_config.json"
    lora = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}
    config.write_text(json.dumps({**lora, "base_model_name_or_path": "someone/model", "revision": "1a2b3c"}))
    assert named(store, base, start, f"{adapter}") == BaseName("someone/model", "1a2b3c")
    assert named(store, base, start, f"{adapter}+{folder}") == BaseName(str(folder))
    assert named(store, base, start, f"else/adapter@9f8e+{HUB}") == BaseName("someone/model", "1a2b3c")
    config.write_text(json.dumps({**lora, "base_model_name_or_path": "../model"}))
    assert named(store, base, start, f"{adapter}") == BaseName(str(folder))
    config.write_text(json.dumps(lora))
    for nameless in (str(adapter), HUB, f"{adapter}+{base}", str(folder)):  # HUB is the adapter, of what it is unknown
        assert named(store, base, start, nameless) == "lake"


def test_a_base_that_was_trained_in_the_lake_or_whose_adapter_no_run_made_is_called_by_its_path(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    first = store.adopt(folder)
    base = store.adopt_files({"model.safetensors": b"trained"}, {"policy": [str(first)]})
    adapter = trained(store, base, base, "on it")
    for policy in (HUB, f"an/adapter@9f8e+{HUB}"):  # of the run that made the base
        assert known_name(store, adapter, base, lambda _made, policy=policy: policy) == BaseName(str(store.path(base)))
    adapter = trained(store, first, first, "by a verb")
    assert known_name(store, adapter, first, lambda _made: "") == BaseName(str(store.path(first)))
    missing = trained(store, first, Ref("checkpoints", "0" * 32), "of another lake")
    assert known_name(store, missing, first, lambda _made: HUB) == BaseName(str(store.path(first)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("someone/model", BaseName("someone/model")),
        (HUB, BaseName("someone/model", "1a2b3c")),
        ("/mnt/models@site/one", BaseName("/mnt/models@site/one")),
    ],
)
def test_a_name_that_the_user_gives_is_read(text: str, expected: BaseName) -> None:
    assert BaseName.parse(text) == expected
    assert str(expected) == text
