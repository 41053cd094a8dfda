"""The store: atomic shards, manifest last, verified reads, every kind of damage noticed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.manifest import Manifest, identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.runlock import held
from gradus.data.seeds import derive_seed

REF = Ref("scores", "ab" * 16)


def scores(ids: list[str]) -> pa.Table:
    return pa.table({"rollout_id": ids, "problem_id": ["p"] * len(ids), "reward": [1.0] * len(ids)})


def finished(store: Store) -> Path:
    writer = store.writer(REF)
    writer.write_table(scores(["a", "b"]), 0)
    writer.write_table(scores(["c"]), 1)
    writer.commit(config={"weight": 1})
    return store.path(REF)


def test_what_was_written_is_read_in_shard_order(tmp_path: Path) -> None:
    store = Store(tmp_path)
    finished(store)
    assert store.read(REF, ["rollout_id"]).column("rollout_id").to_pylist() == ["a", "b", "c"]
    assert store.manifest(REF).rows == 3


def test_without_a_manifest_nothing_is_there(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer(REF).write_table(scores(["a"]))
    assert store.find(REF) is None
    with pytest.raises(CorruptArtifactError, match="no manifest"):
        store.read(REF)


def test_a_second_attempt_keeps_finished_shards_and_sweeps_temporary_files(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer(REF).write_table(scores(["a"]), 0)
    stale = store.path(REF) / ".part-00001.parquet.1.tmp"
    stale.write_bytes(b"half a shard")
    with held(store.path(REF)):
        assert store.writer(REF).done == frozenset({"part-00000"})
    assert not stale.exists()


def test_a_file_without_a_receipt_is_written_again_and_is_in_the_manifest(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer(REF).write_file("_report.json", b"{}", receipt=False)
    writer = store.writer(REF)
    assert [entry.name for entry in writer.entries] == []
    writer.write_file("_report.json", b'{"metrics": {}}', receipt=False)
    writer.commit()
    assert store.read_file(REF, "_report.json") == b'{"metrics": {}}'
    assert [entry.name for entry in store.verify(REF).files] == ["_report.json"]


def test_a_damaged_shard_of_an_unfinished_artifact_is_written_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer(REF).write_table(scores(["a"]), 0)
    flip(store.path(REF) / "part-00000.parquet")
    assert store.writer(REF).done == frozenset()


def flip(path: Path, at: int = 40) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(bytes(content))


def test_one_flipped_bit_is_named_and_never_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = finished(store)
    store.read(REF)
    flip(folder / "part-00001.parquet")
    with pytest.raises(CorruptArtifactError, match=r"part-00001\.parquet does not have the bytes"):
        store.read(REF)


@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "swapped"])
def test_every_damage_to_a_finished_artifact_is_refused(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    folder = finished(store)
    first, second = folder / "part-00000.parquet", folder / "part-00001.parquet"
    if damage == "missing":
        second.unlink()
    elif damage == "empty":
        second.write_bytes(b"")
    elif damage == "torn":
        second.write_bytes(second.read_bytes()[:-7])
    else:
        one, two = first.read_bytes(), second.read_bytes()
        first.write_bytes(two)
        second.write_bytes(one)
    with pytest.raises(CorruptArtifactError, match="part-0000"):
        store.read(REF)


def test_an_extra_file_is_not_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = finished(store)
    pq.write_table(scores(["x"]), folder / "part-00002.parquet")
    assert store.read(REF).num_rows == 3


def test_an_artifact_moved_to_another_name_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = finished(store)
    folder.rename(folder.parent / ("cd" * 16))
    assert store.find(Ref("scores", "cd" * 16)) is None


def test_the_same_key_twice_is_refused_in_one_shard_and_across_shards(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(BadInputError, match="rollout_id=a occurs 2 times"):
        store.writer(REF).write_table(scores(["a", "a"]))
    writer = store.writer(REF)
    writer.write_table(scores(["a"]), 0)
    writer.write_table(scores(["b", "a"]), 1)
    with pytest.raises(BadInputError, match="rollout_id=a occurs 2 times"):
        writer.commit(config={"weight": 1})
    assert store.find(REF) is None
    # Shards of an earlier attempt are compared likewise.
    with pytest.raises(BadInputError, match="rollout_id=a occurs 2 times"):
        store.writer(REF).commit()


def test_keys_that_only_look_alike_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.data.lake.writer.key_hashes", lambda keys: np.zeros(len(keys), np.int64))
    store = Store(tmp_path)
    writer = store.writer(REF)
    writer.write_table(scores(["a", "b"]), 0)
    writer.write_table(scores(["c"]), 1)
    writer.commit(config={"weight": 1})
    assert store.read(REF).num_rows == 3


def test_rows_of_a_plan_share_a_group_and_not_a_name(tmp_path: Path) -> None:
    ref, rows = Ref("plan", "ab" * 16), {"problem_id": ["p", "p", "p"], "n": [1, 1, 1], "group_id": ["g", "g", "x"]}
    writer = Store(tmp_path).writer(ref)
    with pytest.raises(BadInputError, match="group_id=g occurs 2 times"):
        writer.write_table(pa.table(rows))
    with pytest.raises(BadInputError, match="group_id=x occurs 2 times"):
        writer.write_table(pa.table({**rows, "plan_id": ["x", "y", None]}))
    writer.write_table(pa.table({**rows, "plan_id": ["g", "g.1", None]}))
    Store(tmp_path).writer(ref).commit()  # of another attempt
    assert Store(tmp_path).read(ref).num_rows == 3


def test_rows_by_key_are_read_without_decoding_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    writer = store.writer(REF)
    for index, names in enumerate(("ab", "cd", "ef")):
        writer.write_table(scores(list(names)), index)
    writer.commit()
    decoded: list[Any] = []
    read = pq.ParquetFile.read_row_group

    def spy(self: pq.ParquetFile, group: int, columns: list[str]) -> pa.Table:
        decoded.append(columns)
        return read(self, group, columns)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", spy)
    found = store.rows_with(REF, "rollout_id", pa.array(["f", "a", "gone"]), ["rollout_id", "reward"])
    assert found.to_pydict() == {"rollout_id": ["a", "f"], "reward": [1.0, 1.0]}
    assert decoded == [
        ["rollout_id"],
        ["rollout_id", "reward"],
        ["rollout_id"],
        ["rollout_id"],
        ["rollout_id", "reward"],
    ]
    none = store.rows_with(REF, "rollout_id", pa.array(["gone"]), ["rollout_id", "reward"])
    assert (none.num_rows, none.column_names) == (0, ["rollout_id", "reward"])


def test_rows_without_a_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no rollout_id"):
        Store(tmp_path).put("scores", pa.table({"rollout_id": [None], "problem_id": ["p"], "reward": [0.0]}))


def test_a_full_disk_is_said_before_a_shard_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.data.lake.whole_files.HEADROOM_BYTES", 1 << 60)
    with pytest.raises(BadInputError, match="MB are free"):
        Store(tmp_path).writer(REF).write_table(scores(["a"]))


def test_an_older_file_without_a_later_column_reads_as_null_and_unknown_columns_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ref = store.put("problems", pa.table({"problem_id": ["p"], "question": ["?"], "mine": [7]}))
    row = store.read(ref).to_pylist()[0]
    assert row["answer"] is None
    assert row["mine"] == 7


def test_no_other_columns_are_decoded_than_those_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    odd = {"a": [1], "a.b": [2], ".c": [3], "components.key": [4]}  # a dot might be taken for a nested field
    ref = store.put("scores", pa.table({"rollout_id": ["r"], "problem_id": ["p"], "reward": [0.5], **odd}))
    assert store.columns(ref)[-4:] == list(odd)
    decoded: list[list[str]] = []
    read = pq.ParquetFile.read

    def spy(*args: Any, **options: Any) -> pa.Table:
        table = read(*args, **options)
        decoded.append(table.column_names)
        return table

    monkeypatch.setattr(pq.ParquetFile, "read", spy)
    wanted = [".c", "a.b", "reward", "verifier", "nowhere"]
    rows = store.read(ref, wanted)
    assert rows.to_pydict() == {".c": [3], "a.b": [2], "reward": [0.5], "verifier": [None]}
    assert list(rows.column_names) == wanted[:-1]
    assert sorted(decoded[0]) == [".c", "a.b", "reward", "verifier"]
    store.read(ref, ["a"])
    assert decoded[1] == ["a"]


def test_columns_that_no_file_has_are_null_in_every_row(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = store.writer(REF)
    schema = pa.schema([("rollout_id", pa.string()), ("problem_id", pa.string()), ("reward", pa.float64())])
    pq.write_table(pa.table([["r", "s"], ["p", "p"], [1.0, 0.0]], schema=schema), writer.folder / "part-00000.parquet")
    writer._receive("part-00000.parquet", rows=2)  # a file of an earlier version, without the later column
    writer.commit()
    assert store.read(REF, ["verifier"]).to_pydict() == {"verifier": [None, None]}


def test_a_manifest_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = finished(store)
    body = json.loads((folder / "_manifest.json").read_text())
    newer = Manifest.model_validate({**body, "schema_version": 99}).sealed()
    (folder / "_manifest.json").write_bytes(newer.to_bytes())
    with pytest.raises(CorruptArtifactError, match="newer version"):
        store.read(REF)


@pytest.mark.parametrize("text", ["../../etc", "rollouts/../x", "rollouts/", "Rollouts/aabbccdd", "rollouts/AABBCCDD"])
def test_what_is_no_reference_never_becomes_a_path(text: str) -> None:
    with pytest.raises(BadInputError, match="not an artifact reference"):
        Ref.parse(text)


def test_the_same_rows_are_the_same_artifact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.put("scores", scores(["a"])) == store.put("scores", scores(["a"]))
    assert store.put("scores", scores(["a"])) != store.put("scores", scores(["b"]))


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3), min_size=1))
@settings(max_examples=30)
def test_identity_does_not_depend_on_the_order_of_keys_and_depends_on_every_value(config: dict[str, int]) -> None:
    def of(body: dict[str, int], seed: int = 0) -> str:
        return identity_digest({"stage": "s", "version": 1, "config": body, "parents": {}, "seed": seed})

    assert of(config) == of(dict(reversed(config.items())))
    assert of(config) != of(config, seed=1)
    key = next(iter(config))
    assert of(config) != of({**config, key: config[key] + 1})


def test_seeds_are_those_of_their_definition() -> None:
    # sha256("7:p:0")[:8] >> 1, computed with coreutils: printf 7:p:0 | sha256sum
    printed = subprocess.run(["sha256sum"], input=b"7:p:0", capture_output=True, check=True).stdout
    assert derive_seed(7, "p", 0) == int(printed[:16], 16) >> 1


WRITER = """
import sys, os, signal
from pathlib import Path
import pyarrow as pa
from gradus.data.lake.store import Ref, Store
store = Store(Path(sys.argv[1]))
writer = store.writer(Ref("scores", "ab" * 16))
for index in range(50):
    if f"part-{index:05d}" not in writer.done:
        ids = [f"{index}-{i}" for i in range(200)]
        writer.write_table(pa.table({"rollout_id": ids, "problem_id": ids, "reward": [0.5] * 200}), index)
        print(index, flush=True)
"""


def test_a_killed_writer_leaves_only_whole_shards(tmp_path: Path) -> None:
    written: list[str] = []
    for stop_after in (1, 4, 9):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            written.extend(process.stdout.readline().strip() for _ in range(stop_after))
            process.kill()
    done = Store(tmp_path).writer(REF).done
    assert {f"part-{int(i):05d}" for i in written} <= done
    assert len(written) == len(set(written))


def test_other_readers_of_parquet_folders_read_an_artifact_of_several_shards(tmp_path: Path) -> None:
    store = Store(tmp_path)
    writer = store.writer(Ref("problems", "ab" * 16))
    rows = [{"problem_id": f"p{i}", "question": f"{i} + 1 =", "answer": str(i + 1)} for i in range(6)]
    for index in (0, 1, 2):
        writer.write_table(pa.Table.from_pylist(rows[2 * index : 2 * index + 2]), index)
    writer.write_file("_report.json", b"{}")
    writer.commit()
    folder = store.path(writer.ref)
    assert {path.name for path in folder.iterdir()} >= {"_manifest.json", "_report.json", "part-00002.parquet"}
    wanted = [row["problem_id"] for row in rows]
    assert sorted(pd.read_parquet(folder)["problem_id"]) == wanted
    assert sorted(ds.dataset(folder).to_table(columns=["problem_id"]).column(0).to_pylist()) == wanted
    assert sorted(pq.read_table(folder).column("problem_id").to_pylist()) == wanted
    with duckdb.connect() as database:
        found = database.execute(f"select problem_id from '{folder}/*.parquet' order by all").fetchall()
    assert [name for (name,) in found] == wanted
