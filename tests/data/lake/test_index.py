"""What is kept of manifests: used while they are as they were, and never needed."""

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.index import Index, Listed
from gradus.data.lake.manifest import FILE_NAME, Manifest
from gradus.data.lake.store import Ref, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def refs(store: Store) -> list[Ref]:
    return [store.put("scores", pa.table({"rollout_id": [n], "problem_id": ["p"], "reward": [1.0]})) for n in "abc"]


def read(store: Store, refs: list[Ref]) -> tuple[list[Listed | None], list[pa.Schema]]:
    """What one command reads."""
    index = Index(store)
    with index.keeping():
        found = [index.find(ref) for ref in refs]
        return found, [index.schema(ref, path) for ref in refs for path in store.files(ref)]


def unread(*_: Any) -> Any:
    raise AssertionError("it was read again")


def test_the_second_command_opens_neither_manifests_nor_footers(
    store: Store, refs: list[Ref], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read(store, refs)
    assert [listed.files for listed in first[0] if listed] == [store.manifest(ref).files for ref in refs]
    assert first[1] == [pq.read_schema(path) for ref in refs for path in store.files(ref)]
    with monkeypatch.context() as patch:
        patch.setattr(pq, "read_schema", unread)
        index = Index(store)
        paths = [store.files(ref)[0] for ref in refs]
        patch.setattr(Store, "manifest", unread)
        assert [index.find(ref) for ref in refs] == first[0]
        assert [index.schema(ref, path) for ref, path in zip(refs, paths, strict=True)] == first[1]


def test_a_manifest_that_was_replaced_is_read_again_and_one_that_is_gone_is_gone(store: Store, refs: list[Ref]) -> None:
    read(store, refs)
    path = store.path(refs[0]) / FILE_NAME
    manifest, times = (
        Manifest.model_validate_json(path.read_bytes()),
        (path.stat().st_atime_ns, path.stat().st_mtime_ns),
    )
    other = manifest.model_copy(update={"parents": {"rollouts": ["rollouts/" + "a" * 32]}}).sealed()
    path.unlink()
    path.write_bytes(other.to_bytes())
    os.utime(path, ns=times)
    assert read(store, refs)[0][0] == Listed(other.parents, other.files)
    path.write_bytes(path.read_bytes().replace(b"parents", b"parentz"))
    with pytest.raises(CorruptArtifactError, match=refs[0].digest):
        read(store, refs)
    path.unlink()
    assert Index(store).find(refs[0]) is None
    (store.path(refs[1]) / "part-00000.parquet").unlink()
    with pytest.raises(CorruptArtifactError, match=r"part-00000\.parquet is missing"):
        Index(store).find(refs[1])


@pytest.mark.parametrize("content", [b"", b"{}", b"00000000\n{}", None])
def test_a_damaged_lost_or_old_index_is_written_anew(store: Store, refs: list[Ref], content: bytes | None) -> None:
    first, (kept,) = read(store, refs), (store.root / ".index").iterdir()
    whole = kept.read_bytes()
    if content is None:
        kept.unlink()
    else:
        kept.write_bytes(content)
    assert read(store, refs) == first
    assert kept.read_bytes() == whole
    kept.write_bytes(whole.replace(b'"p', b'"q', 1))
    assert read(store, refs) == first


def test_two_commands_at_once_and_a_lake_that_cannot_be_written_are_served(
    store: Store, refs: list[Ref], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = Index(store), Index(store)
    with one.keeping(), other.keeping():
        assert one.find(refs[0]) == other.find(refs[0])
        assert other.find(refs[1]) is not None
    (kept,) = (store.root / ".index").iterdir()
    assert json.loads(kept.read_bytes().partition(b"\n")[2])["entries"].keys() <= {ref.digest for ref in refs}

    def refuse(*_: Any) -> None:
        raise PermissionError(13, "not yours")

    monkeypatch.setattr("gradus.data.lake.index.write_cache", refuse)
    assert len(read(store, refs)[0]) == 3
