"""SQL over the lake: what the views show, and everything that a query must not be able to do."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from data.errors import CorruptArtifactError, UsageError
from data.queries import lake_views, run_sql
from data.store import Ref, Store


def scores(ids: list[str], **extra: list[object]) -> pa.Table:
    columns = {"rollout_id": ids, "problem_id": ["p"] * len(ids), "reward": [1.0] * len(ids)}
    return pa.table(columns | extra)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "it's a lake")  # a quote and spaces in the path


def test_views_join_tables_and_name_the_artefact_of_each_row(store: Store) -> None:
    first, second = store.put("scores", scores(["a", "b"])), store.put("scores", scores(["c"], mine=[7]))
    problems = store.put("problems", pa.table({"problem_id": ["p"], "question": ["?"]}))
    rows = run_sql(
        store,
        {"scores": [first, second], "problems": [problems]},
        "select rollout_id, mine, outcome, s.artefact, question "
        "from scores s join problems using (problem_id) order by rollout_id",
    ).to_pylist()
    assert [(r["rollout_id"], r["mine"], r["outcome"], r["question"]) for r in rows] == [
        ("a", None, None, "?"),
        ("b", None, None, "?"),
        ("c", 7, None, "?"),
    ]
    assert [r["artefact"] for r in rows] == [first.digest, first.digest, second.digest]


def test_lists_and_maps_are_what_they_are(store: Store) -> None:
    table = scores(["a"]).append_column("components", pa.array([[("math", 0.5)]], pa.map_(pa.string(), pa.float64())))
    ref = store.put("scores", table)
    assert run_sql(store, {"scores": [ref]}, "select components['math'] as m from scores").to_pylist() == [{"m": 0.5}]


def test_an_artefact_without_rows_is_an_empty_view_with_its_columns(store: Store) -> None:
    empty = store.put("hints", pa.table({"problem_id": [], "strategy": [], "level": [], "text": []}))
    found = run_sql(store, {"hints": [empty]}, "select * from hints")
    assert found.num_rows == 0
    assert found.column_names[-1] == "artefact"
    assert {"problem_id", "leaks_answer"} <= set(found.column_names)


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


def test_the_connection_itself_is_locked(store: Store, tmp_path: Path) -> None:
    ref = store.put("scores", scores(["a"]))
    with lake_views(store, {"scores": [ref]}) as connection:
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


def test_views_of_nothing_of_weights_or_of_two_tables_are_refused(store: Store) -> None:
    ref = store.put("scores", scores(["a"]))
    for refs in ([], [Ref("checkpoints", "0" * 32)], [ref, Ref("plan", "0" * 32)]):
        with pytest.raises(UsageError, match="the view 'v'"):
            run_sql(store, {"v": refs}, "select 1")


def test_a_mistake_in_the_query_names_the_tables_there_are(store: Store) -> None:
    with pytest.raises(UsageError, match=r"the query did not run.*the tables are scores"):
        run_sql(store, {"scores": [store.put("scores", scores(["a"]))]}, "select nothing from scores")
