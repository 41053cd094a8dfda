"""SQL over the lake: what the views show, and everything that a query must not be able to do."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from gradus.data.errors import CorruptArtifactError, GradusError, UsageError
from gradus.data.lake.memory_limit import MemoryLimit
from gradus.data.lake.queries import Relation, locked, select
from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.lake_views import tables, views
from gradus.tasks.runs.lineage import USED, Lineage

Refs = Mapping[str, Sequence[Ref]]


class Lake(Lineage):
    """Artifacts by table, and which rollouts their scores judge."""

    def __init__(self, store: Store, refs: Refs, judged: Mapping[str, str] | None = None) -> None:
        super().__init__(store, [], whole_lake=True)
        self._refs = refs
        self._judged = judged or {}

    def artifacts(self, table: str) -> list[Ref]:
        return [*self._refs.get(table, ())]

    def judged(self) -> Mapping[str, str]:
        return self._judged

    def used(self) -> pa.Table:
        return USED.empty_table()


def run_sql(store: Store, refs: Refs, sql: str, judged: Mapping[str, str] | None = None) -> pa.Table:
    lake, said = Lake(store, refs, judged), list[str]()
    hidden, above = views(lake, said.append)
    with select({**tables(lake, said.append), **hidden}, above, sql) as answer:
        batches = list(answer.batches)
    assert said == []
    return pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in answer.columns})


def scores(ids: list[str], **extra: list[object]) -> pa.Table:
    columns = {"rollout_id": ids, "problem_id": ["p"] * len(ids), "reward": [1.0] * len(ids)}
    return pa.table(columns | extra)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "it's a lake")  # a quote and spaces in the path


def test_views_join_tables_and_name_the_artifact_of_each_row(store: Store) -> None:
    first, second = store.put("scores", scores(["a", "b"])), store.put("scores", scores(["c"], mine=[7]))
    problems = store.put("problems", pa.table({"problem_id": ["p"], "question": ["?"]}))
    rows = run_sql(
        store,
        {"scores": [first, second], "problems": [problems]},
        "select rollout_id, mine, outcome, s.artifact, question "
        "from scores s join problems using (problem_id) order by rollout_id",
    ).to_pylist()
    assert [(r["rollout_id"], r["mine"], r["outcome"], r["question"]) for r in rows] == [
        ("a", None, None, "?"),
        ("b", None, None, "?"),
        ("c", 7, None, "?"),
    ]
    assert [r["artifact"] for r in rows] == [first.digest, first.digest, second.digest]


def test_lists_and_maps_are_what_they_are(store: Store) -> None:
    table = scores(["a"]).append_column("components", pa.array([[("math", 0.5)]], pa.map_(pa.string(), pa.float64())))
    ref = store.put("scores", table)
    assert run_sql(store, {"scores": [ref]}, "select components['math'] as m from scores").to_pylist() == [{"m": 0.5}]


def test_an_artifact_without_rows_is_an_empty_view_with_its_columns(store: Store) -> None:
    empty = store.put("hints", pa.table({"problem_id": [], "strategy": [], "level": [], "text": []}))
    found = run_sql(store, {"hints": [empty]}, "select * from hints")
    assert found.num_rows == 0
    assert found.column_names[-1] == "artifact"
    assert {"problem_id", "leaks_answer"} <= set(found.column_names)


def test_a_lake_without_anything_has_every_table_with_its_columns(store: Store) -> None:
    assert run_sql(store, {}, "select count(*) as n from rollouts join samples using (rollout_id)").to_pylist() == [
        {"n": 0}
    ]
    shown = run_sql(store, {}, "show tables").column("name").to_pylist()
    tables = "batch difficulty evaluations gradients help hints measures plan problems rollouts samples scores"
    assert shown == [*tables.split(), "trackers", "updates"]
    names = run_sql(store, {}, "describe rollouts").column("column_name").to_pylist()
    assert {"rollout_id", "completion_tokens", "artifact"} <= set(names)


def test_ids_that_repeat_between_artifacts_are_told_apart_and_new_ones_stay_as_they_are(store: Store) -> None:
    def rollouts(ids: list[str], text: str) -> Ref:
        columns = {"rollout_id": ids, "problem_id": ["p"] * len(ids), "completion": [text] * len(ids)}
        return store.put("rollouts", pa.table(columns))

    old, other = rollouts(["p:0", "p:1"], "old"), rollouts(["p:0"], "other")
    first, second = store.put("scores", scores(["p:0", "p:1"])), store.put("scores", scores(["p:0"], mine=[2]))
    refs = {"rollouts": [old, other], "scores": [first, second]}
    judged = {first.digest: old.digest, second.digest: other.digest}
    found = run_sql(store, refs, "select * from rollouts join scores using (rollout_id)", judged).to_pylist()
    assert sorted((row["rollout_id"], row["completion"], row["mine"]) for row in found) == sorted(
        [
            (f"{old.digest[:16]}:p:0", "old", None),
            (f"{old.digest[:16]}:p:1", "old", None),
            (f"{other.digest[:16]}:p:0", "other", 2),
        ]
    )
    named = Ref("rollouts", "ab" * 16)
    writer = store.writer(named)
    writer.write_table(pa.table({"rollout_id": ["ab" * 8 + ":p:0"], "problem_id": ["p"], "completion": ["new"]}))
    writer.commit()
    (row,) = run_sql(store, {"rollouts": [named]}, "select rollout_id from rollouts").to_pylist()
    assert row == {"rollout_id": "abababababababab:p:0"}


def test_columns_of_users_whose_types_do_not_go_together_are_text(store: Store) -> None:
    refs = [store.put("scores", scores(["a"], mine=[7], deep=[[1]])), store.put("scores", scores(["b"], mine=["x"]))]
    refs.append(store.put("scores", scores(["c"], mine=[0.5], deep=["flat"], artifact=["elsewhere"])))
    found = run_sql(store, {"scores": refs}, "select * from scores order by rollout_id").to_pylist()
    assert [row["mine"] for row in found] == ["7", "x", "0.5"]
    assert [row["artifact"] for row in found] == [ref.digest for ref in refs]
    assert "deep" not in found[0]


def test_only_what_a_query_names_is_read(store: Store) -> None:
    ref = store.put("scores", scores(["a"]))
    (shard,) = store.files(ref)
    shard.write_bytes(b"no Parquet")
    fresh = Store(store.root)
    assert run_sql(fresh, {"scores": [ref]}, "select 1 as one").to_pylist() == [{"one": 1}]
    assert run_sql(fresh, {"scores": [ref]}, "show tables").num_rows == 14
    with pytest.raises(UsageError, match="reads scores without naming it; write the name of every table as it is"):
        run_sql(fresh, {"scores": [ref]}, "from query('from sco' || 'res')")
    with pytest.raises(CorruptArtifactError, match="part-00000"):
        run_sql(fresh, {"scores": [ref]}, 'select count(*) from "SCORES"')


@pytest.mark.parametrize("sql", ["describe scores", "summarize scores", "from scores", "values (1)", "show tables"])
def test_every_way_to_read_is_open(store: Store, sql: str) -> None:
    assert run_sql(store, {"scores": [store.put("scores", scores(["a"]))]}, sql).num_rows > 0


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/hostname')",
        "select * from glob('/*')",
        "select * from '{shard}'",
        "select * from read_parquet('{shard}')",
        "select * from read_text('https://example.org/')",
        "copy (select 1) to '{folder}/out.csv'",
        "with x as (copy (select 1) to '{shard}' (format parquet, use_tmp_file false)) select 1",
        "with x as (copy (select 1) to '{folder}/out.csv') select 1",
        "with x as (insert into scores (rollout_id) values ('z') returning *) select * from x",
        "explain analyze copy (select 1) to '{folder}/out.csv'",
        "attach '{folder}/other.db'",
        "create table t as select 1",
        "drop view scores",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "pragma database_list",
        "install httpfs",
        "load '{folder}/evil.duckdb_extension'",
        "export database '{folder}/all'",
        "select 1; select 2",
        "select * from store",  # a Python variable of the caller
        "select * from _rollouts",  # what only the views read
        "select * from nowhere",
        "select",
        "",
    ],
)
def test_nothing_else_is_read_written_or_changed(store: Store, tmp_path: Path, sql: str) -> None:
    ref = store.put("scores", scores(["a"]))
    (shard,) = store.files(ref)
    before = shard.read_bytes(), sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError):
        run_sql(store, {"scores": [ref]}, sql.format(shard=str(shard).replace("'", "''"), folder=tmp_path))
    assert (shard.read_bytes(), sorted(tmp_path.rglob("*"))) == before


def test_the_connection_itself_is_locked(tmp_path: Path) -> None:
    with locked({"scores": Relation.of(scores(["a"]))}, {}, "scores") as connection:
        assert connection.sql("select count(*) from scores").fetchall() == [(1,)]
        for sql in (f"copy (select 1) to '{tmp_path}/out.csv'", "set memory_limit = '1GB'", "install httpfs"):
            with pytest.raises(duckdb.Error):
                connection.execute(sql)
    assert not (tmp_path / "out.csv").exists()


def test_a_flipped_bit_is_noticed_before_a_row_is_read(store: Store) -> None:
    ref = store.put("scores", scores(["a"]))
    (shard,) = store.files(ref)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptArtifactError, match="part-00000"):
        run_sql(Store(store.root), {"scores": [ref]}, "select * from scores")


def test_a_mistake_in_the_query_names_the_tables_there_are(store: Store) -> None:
    with pytest.raises(UsageError, match=r"the query did not run.*the tables are samples, help, problems, hints, plan"):
        run_sql(store, {"scores": [store.put("scores", scores(["a"]))]}, "select nothing from scores")


@pytest.mark.slow
def test_rows_are_streamed_and_few_shards_are_held(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = partial(duckdb.connect, config={"threads": 2})  # each holds some 120,000 rows
    monkeypatch.setattr("gradus.data.lake.queries.duckdb.connect", connect)
    shard_rows, shards = 60_000, 12
    ref, text = Ref("rollouts", "ab" * 16), "x" * 400  # 24 MB a shard
    writer = store.writer(ref)
    for index in range(shards):
        ids = pa.array([f"{index}-{row}" for row in range(shard_rows)])
        columns = {"rollout_id": ids, "problem_id": ids, "completion": pa.array([text] * shard_rows)}
        writer.write_table(pa.table(columns), index)
    writer.commit(identity={})
    before = pa.total_allocated_bytes()
    with select(tables(Lake(store, {"rollouts": [ref]}), print), {}, "select * from rollouts") as answer:
        next(answer.batches)
        time.sleep(1)  # until what is read ahead is there
        held_mb = (pa.total_allocated_bytes() - before) / 1e6
    assert held_mb < 160  # of 290; with Arrow's own readahead all of it


@pytest.mark.slow
def test_a_query_stays_within_its_memory_and_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    memory = MemoryLimit(100_000_000, tmp_path)
    rows = Relation.of(pa.table({"i": np.random.default_rng(0).permutation(2_000_000)}))
    sort = "select i, repeat('x', 40) || i as text from rows order by text"  # about 130 MB
    with select({"rows": rows}, {}, sort, memory) as answer:
        first = next(answer.batches)
        (folder,) = tmp_path.iterdir()
        assert any(path.stat().st_size > 1_000_000 for path in folder.iterdir())
        assert first.column("i")[0].as_py() == 0
        assert sum(batch.num_rows for batch in answer.batches) == 2_000_000 - first.num_rows
    assert not list(tmp_path.iterdir())
    lists = "select max(len(l)) from (select list(repeat('x', 40) || i) as l from rows group by i % 2)"
    with (
        pytest.raises(GradusError, match=r"more than 0\.1 GB of memory.*raise GRADUS_MEMORY_GB") as raised,
        select({"rows": rows}, {}, lists, memory) as answer,
    ):
        list(answer.batches)
    assert not isinstance(raised.value, UsageError)
    assert not list(tmp_path.iterdir())
