"""A lake of schema 1, written here as the first version wrote it, is brought up to date once and stays readable."""

import hashlib
import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from gradus.data.lake.manifest import Manifest
from gradus.data.lake.store import Ref
from gradus.data.lake.upgrade import open_lake

REF = Ref("scores", "0123456789abcdef" * 2)
ROWS = {"rollout_id": ["a", "b"], "problem_id": ["p", "p"], "reward": [1.0, 0.0]}


def old_lake(root: Path, ref: Ref = REF) -> Path:
    """One finished artifact in the layout of schema 1."""
    folder = root / ref.table / ref.digest
    folder.mkdir(parents=True)
    part = folder / "part-00000.parquet"
    pq.write_table(pa.table(ROWS), part)
    (folder / "report.json").write_text(json.dumps({"metrics": {"reward/mean": 0.5}, "summary": {"rows": 2}}))
    entry = {
        "name": part.name,
        "sha256": hashlib.sha256(part.read_bytes()).hexdigest(),
        "bytes": part.stat().st_size,
        "rows": 2,
        "key_min": ["a"],
        "key_max": ["b"],
    }
    body = {
        "table": ref.table, "digest": ref.digest, "schema_version": 1, "stage": "score", "stage_version": 1, "seed": 7,
        "config": {"max_error_frac": 0.05}, "parents": {"rollouts": ["rollouts/00112233"]}, "versions": {"gradus": "0"},
        "summary": {}, "gate": "", "files": [entry],
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(body))
    return folder


def test_an_old_lake_is_upgraded_once_and_says_so_once(tmp_path: Path) -> None:
    folder = old_lake(tmp_path)
    said: list[str] = []
    store = open_lake(tmp_path, said.append)
    assert said == [
        "1 artifacts of an earlier version were brought up to date: their manifests and reports now carry digests"
    ]
    assert store.read(REF, ["rollout_id"]).column("rollout_id").to_pylist() == ["a", "b"]
    assert json.loads(store.read_file(REF, "_report.json") or b"")["summary"] == {"rows": 2}
    manifest = store.manifest(REF)
    assert manifest.parents == {"rollouts": ["rollouts/00112233"]}
    assert (manifest.stage, manifest.schema_version, manifest.config) == ("score", 1, {"max_error_frac": 0.05})
    assert not list(folder.glob("[!_.]*.json"))
    open_lake(tmp_path, said.append)
    assert len(said) == 1


def test_other_readers_read_the_folder_of_an_old_artifact_once_it_is_upgraded(tmp_path: Path) -> None:
    folder = old_lake(tmp_path)
    with pytest.raises(pa.ArrowInvalid, match=r"manifest\.json"):
        ds.dataset(folder).to_table()
    open_lake(tmp_path, lambda _: None)
    assert ds.dataset(folder).to_table().to_pydict() == ROWS
    assert pd.read_parquet(folder).to_dict("list") == ROWS


def test_an_upgrade_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    folder = old_lake(tmp_path)
    (folder / "report.json").rename(folder / "_report.json")
    store = open_lake(tmp_path, lambda text: None)
    assert store.read_file(REF, "_report.json") is not None
    assert store.find(REF) is not None


def test_a_manifest_that_cannot_be_read_is_left_alone_and_named(tmp_path: Path) -> None:
    good, bad = old_lake(tmp_path), old_lake(tmp_path, Ref("scores", "ff" * 16))
    (bad / "manifest.json").write_text('{"table": "scores"')
    said: list[str] = []
    store = open_lake(tmp_path, said.append)
    assert f"1 manifests could not be read and were left alone (first: {bad / 'manifest.json'})" in said[0]
    assert store.find(REF) is not None
    assert (bad / "manifest.json").exists()
    assert (good / "_manifest.json").exists()


def test_a_new_lake_has_nothing_to_upgrade(tmp_path: Path) -> None:
    said: list[str] = []
    store = open_lake(tmp_path / "lake", said.append)
    ref = store.put("scores", pa.table(ROWS))
    assert Manifest.model_validate_json((store.path(ref) / "_manifest.json").read_bytes()).schema_version == 2
    open_lake(tmp_path / "lake", said.append)
    assert said == []
