"""A manifest proves itself: no bit of it, or of the report beside it, changes unseen."""

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.manifest import identity_digest
from gradus.data.lake.store import Ref, Store

IDENTITY = {"stage": "score", "version": 3, "config": {"weight": 1.0}, "parents": {"rollouts": ["x"]}, "seed": 7}
REF = Ref("scores", identity_digest(IDENTITY))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = Store(tmp_path)
    writer = found.writer(REF)
    writer.write_table(pa.table({"rollout_id": ["a"], "problem_id": ["p"], "reward": [1.0]}))
    writer.write_file("_report.json", b'{"metrics": {"reward/mean": 1.0}, "summary": {"rows": 1}}')
    writer.commit(identity=IDENTITY, config={"weight": 1.0}, parents={"rollouts": ["rollouts/aabbccdd"]})
    return found


def readable(store: Store) -> bool:
    """Whether a reader, with nothing remembered, takes the artifact and its report for whole."""
    fresh = Store(store.root)
    try:
        fresh.verify(REF)
        fresh.read_file(REF, "_report.json")
    except CorruptArtifactError:
        return False
    return fresh.find(REF) is not None


@pytest.mark.parametrize("name", ["_manifest.json", "_report.json", "part-00000.parquet"])
def test_every_flipped_bit_is_seen(store: Store, name: str) -> None:
    path = store.path(REF) / name
    whole = path.read_bytes()
    assert readable(store)
    rng = random.Random(0)
    for place in rng.sample(range(len(whole)), min(len(whole), 150)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(flipped))
        assert not readable(store), f"bit flipped in byte {place} of {name}"
    path.write_bytes(whole)
    assert readable(store)


def test_a_manifest_with_another_identity_and_a_right_digest_of_itself_is_refused(store: Store) -> None:
    manifest = store.manifest(REF)
    lie = manifest.model_copy(update={"identity": {**IDENTITY, "seed": 8}}).sealed()
    (store.path(REF) / "_manifest.json").write_bytes(lie.to_bytes())
    with pytest.raises(CorruptArtifactError, match="not made from what its name says"):
        store.manifest(REF)


def test_the_name_is_the_digest_of_the_identity_by_another_hand(store: Store) -> None:
    import hashlib

    body = json.loads((store.path(REF) / "_manifest.json").read_text())
    text = '{"config":{"weight":1.0},"parents":{"rollouts":["x"]},"seed":7,"stage":"score","version":3}'
    assert body["identity"] == IDENTITY
    assert hashlib.sha256(text.encode()).hexdigest()[:32] == REF.digest


def test_what_a_stage_depends_on_are_rows_not_reports(store: Store) -> None:
    other = Ref("scores", identity_digest({"another": 1}))
    writer = store.writer(other)
    writer.write_table(pa.table({"rollout_id": ["a"], "problem_id": ["p"], "reward": [1.0]}))
    writer.commit()
    assert store.content_key(REF) == store.content_key(other)


def test_a_manifest_in_another_layout_is_read_by_its_values(store: Store) -> None:
    path = store.path(REF) / "_manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=3))
    assert readable(store)
    path.write_text(path.read_text().replace('"weight": 1.0', '"weight": 2.0'))
    assert not readable(store)
