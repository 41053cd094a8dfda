"""Folders from somebody else: nothing outside the lake is written, read or removed by what they say of themselves.

Each gift is given to the program, which ends with one sentence; a file beside everything must stay as it was.
"""

import hashlib
import inspect
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from gradus.data.errors import GradusError
from gradus.data.lake.manifest import FileEntry
from gradus.data.lake.names import file_name
from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.token_pieces import Tokenizers
from gradus.tasks.preflight.checks import SAMPLES
from tests.faults.foreign.gifts import CANARY, DIGEST, Body, Place, sealed


def file(name: str, **other: object) -> Callable[[Body], Body]:
    """A manifest whose only file is called so."""
    return lambda body: {**body, "files": [{**body["files"][0], "name": name, **other}]}


MANIFESTS: dict[str, Callable[[Body], Body]] = {
    "digest above": lambda body: {**body, "identity": {}, "digest": "../../../canary"},
    "digest absolute": lambda body: {**body, "identity": {}, "digest": "/tmp/canary"},
    "digest short": lambda body: {**body, "identity": {}, "digest": "ab"},
    "table above": lambda body: {**body, "table": "../rollouts"},
    "parent above": lambda body: {**body, "parents": {"problems": ["problems/../../canary"]}},
    "twice": lambda body: {**body, "files": body["files"] * 2},
    "bytes below zero": file("part-00000.parquet", bytes=-1),
    "no sha256": file("part-00000.parquet", sha256="../canary"),
    "not a number": lambda body: {**body, "config": {"x": float("nan")}},
    "newer": lambda body: {**body, "schema_version": 99},
    "another table": lambda body: {**body, "identity": {}, "table": "scores"},
    **{
        f"file {name[:20]!r}": file(name)
        for name in (
            "../../../canary", "a/../../../../canary", "/etc/hostname", "a\\..\\b", ".receipts/x.json",
            "_manifest.json", "a\0b",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("change", MANIFESTS.values(), ids=MANIFESTS)
def test_a_hostile_manifest_is_refused_as_input_and_where_a_result_goes(
    place: Place, refused: Callable[..., str], change: Callable[[Body], Body]
) -> None:
    gift = place.give(change)
    before = {path: path.read_bytes() for path in gift.rglob("*") if path.is_file()}
    refused("score", "--rollouts", str(gift))
    if change not in (MANIFESTS["newer"], MANIFESTS["another table"]):
        refused("score", "--rollouts", str(place.rows), "--out", str(gift))
    assert {path: path.read_bytes() for path in gift.rglob("*") if path.is_file()} == before


def _link(gift: Path, canary: Path) -> None:
    (gift / "part-00000.parquet").unlink()
    (gift / "part-00000.parquet").symlink_to(canary)


def _linked_copy(gift: Path, canary: Path) -> None:
    shutil.move(gift / "part-00000.parquet", canary.parent / "shard")
    (gift / "part-00000.parquet").symlink_to(canary.parent / "shard")


def _folder(gift: Path, canary: Path) -> None:
    del canary
    (gift / "part-00000.parquet").unlink()
    (gift / "part-00000.parquet").mkdir()


def _pipe(gift: Path, canary: Path) -> None:
    del canary
    (gift / "part-00000.parquet").unlink()
    os.mkfifo(gift / "part-00000.parquet")


def _other_bytes(gift: Path, canary: Path) -> None:
    (gift / "part-00000.parquet").write_bytes(canary.read_bytes())


def _no_parquet(gift: Path, canary: Path) -> None:
    content = canary.read_bytes()
    (gift / "part-00000.parquet").write_bytes(content)
    body = json.loads((gift / "_manifest.json").read_bytes())
    entry = {"name": "part-00000.parquet", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (gift / "_manifest.json").write_bytes(sealed({**body, "files": [{**entry, "rows": 1}]}))


def _linked_manifest(gift: Path, canary: Path) -> None:
    shutil.move(gift / "_manifest.json", canary.parent / "manifest")
    (gift / "_manifest.json").symlink_to(canary.parent / "manifest")


def _large(gift: Path, canary: Path) -> None:
    del canary
    os.truncate(gift / "_manifest.json", 2 << 30)


def _deep(gift: Path, canary: Path) -> None:
    del canary
    (gift / "_manifest.json").write_text('{"config": ' + "[" * 1_000_000)


def _gone(gift: Path, canary: Path) -> None:
    del canary
    (gift / "part-00000.parquet").unlink()


@pytest.mark.parametrize(
    "spoil",
    [_link, _linked_copy, _folder, _pipe, _other_bytes, _no_parquet, _linked_manifest, _large, _deep, _gone],
    ids=lambda function: function.__name__,
)
def test_a_gift_that_is_not_what_its_manifest_says_is_refused_before_anything_is_written(
    place: Place, refused: Callable[..., str], spoil: Callable[[Path, Path], None]
) -> None:
    spoil(place.give(), place.canary)
    refused("score", "--rollouts", str(place.gift))
    assert not list(place.home.glob("lake/rollouts/*"))


def test_of_a_good_gift_only_what_its_manifest_names_is_taken(place: Place) -> None:
    gift = place.give()
    (gift / ".receipts").mkdir()
    (gift / ".receipts" / "x.json").write_text('{"name": "../../../../canary", "sha256": "0", "bytes": 1}')
    for name in ("extra.py", "part-00001.parquet"):
        (gift / name).write_bytes(b"no part of it")
    (gift / "link").symlink_to(place.canary)
    from gradus.tasks.artifacts.resolve import resolve_artifact

    store = Store(place.home / "lake")
    ref = resolve_artifact(store, str(gift), "rollouts")
    assert store.read(ref, ["completion"]).column(0).to_pylist() == ["2"]
    assert {path.name for path in store.path(ref).iterdir()} == {".lock", "_manifest.json", "part-00000.parquet"}
    assert (store.path(ref) / "_manifest.json").read_bytes() == (gift / "_manifest.json").read_bytes()
    assert place.canary.read_bytes() == CANARY


def test_links_in_a_folder_of_another_systems_rollouts_are_refused(place: Place, refused: Callable[..., str]) -> None:
    (place.root / "dump").mkdir()
    place.rows.rename(place.root / "elsewhere.jsonl")
    (place.root / "dump" / "1.jsonl").symlink_to(place.root / "elsewhere.jsonl")
    from gradus.flows import exchange

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "import_rollouts", inspect.unwrap(exchange.import_rollouts.fn))
        assert "is a link" in refused("import", str(place.root / "dump"), "--from", "verl")


def test_a_receipt_with_the_name_of_another_file_removes_nothing(place: Place) -> None:
    store = Store(place.home / "lake")
    ref = Ref("scores", DIGEST)
    receipts = store.path(ref) / ".receipts"
    receipts.mkdir(parents=True)
    (receipts / "x.json").write_text(json.dumps({"name": "../../../../canary", "sha256": "0" * 64, "bytes": 1}))
    (receipts / "y.json").write_text("{")
    assert store.writer(ref).entries == ()
    assert not list(receipts.iterdir())
    assert place.canary.read_bytes() == CANARY


def test_a_policy_named_in_a_row_is_a_digest_or_nothing(place: Place) -> None:
    shutil.copy(SAMPLES / "policy" / "tokenizer.json", place.root / "tokenizer.json")
    assert Tokenizers(Store(place.home / "lake")).of("../../..") is None


NAMES = st.one_of(
    st.text(max_size=30),
    st.lists(st.sampled_from(["a", "..", ".", "", "~", "ema", ".lock", "C:", "\\", "\0", " "]), max_size=5).map(
        "/".join
    ),
)


@given(NAMES)
@example("../x")
@example("/x")
@example("\ud800")
@example("a" * 300)
@example("/".join("abcdefghi"))
@settings(max_examples=60)
def test_a_name_that_is_accepted_leads_to_a_file_inside_the_folder(name: str) -> None:
    try:
        entry = FileEntry(name=name, sha256="0" * 64, bytes=0)
    except ValidationError:
        with pytest.raises(GradusError, match="is no name of a file of an artifact"):
            file_name(name)
        return
    folder = Path("/lake/rollouts/abcdefgh")
    path = Path(os.path.normpath(folder / entry.name))
    assert path.is_relative_to(folder)
    assert path == folder / file_name(name) != folder
    assert not any(part.startswith(".") for part in path.relative_to(folder).parts)
