"""Views of `gradus sql`: the tables with ids that are unique in the lake, and the view `samples`.

`rollouts` and `scores` show every id with the beginning of its artifact's digest, also those of files that users
bring and of lakes whose ids repeat between artifacts; so a join on `rollout_id` pairs a rollout with its own scores.
`samples` is one row for each rollout that a run used, with the scores that the same run used: each run's rows appear
once, even if an artifact was scored twice or is shared by runs. `USED` says which run used which artifacts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs

from gradus.data.lake.queries import Relation, View
from gradus.data.lake.schema import CHECKPOINTS, EXPLAINED, KEY_DIGITS, OWN, ROWS_FILE, TABLES, UPDATES, misfit
from gradus.data.lake.store import Ref
from gradus.tasks.runs.lineage import USED, Lineage

Say = Callable[[str], None]

BATCH_ROWS = 1 << 12
TOGETHER = 64
"""Shards that are opened together."""
_JUDGED = "rollouts_artifact"
_USED_IN = "_round"
"""The round in which a run used a rollouts artifact: the file's own is 0 for evaluations, which any round may reuse."""
_ADDED = ("artifact", _JUDGED, _USED_IN)
_UPDATES = UPDATES.arrow.append(pa.field("checkpoint", pa.string()))


class _Frugal(ds.FileSystemDataset):  # pyright: ignore[reportUntypedBaseClass] - pyarrow ships no types
    """Shards with constant columns of their own, whose scanner, which DuckDB asks for, has few of them open.

    One shard ahead is read: four shards and sixteen batches, Arrow's own choice, are 300 MB more for shards of 100,000
    rollouts, and no faster. No more than TOGETHER shards are held: what Arrow keeps of each is 100 kB.
    """

    shards: Sequence[tuple[Path, ds.Expression]] = ()

    @classmethod
    def of(cls, schema: pa.Schema, shards: Sequence[tuple[Path, ds.Expression]]) -> "_Frugal":
        """Return the dataset; no shard is opened before it is scanned."""
        rows = cls([], schema, ds.ParquetFileFormat(), filesystem=pyarrow.fs.LocalFileSystem())
        rows.shards = shards
        return rows

    def scanner(self, **options: object) -> "_Scan":
        """Return what reads the shards; DuckDB names columns and filter."""
        return _Scan(super().scanner(**options).projected_schema, partial(self._batches, options))

    def _batches(self, options: Mapping[str, object]) -> Iterator[pa.RecordBatch]:
        parquet, disk = ds.ParquetFileFormat(), pyarrow.fs.LocalFileSystem()
        for begin in range(0, len(self.shards), TOGETHER):
            some = self.shards[begin : begin + TOGETHER]
            fragments = [parquet.make_fragment(str(path), disk, partition_expression=own) for path, own in some]
            rows = ds.FileSystemDataset(fragments, self.schema, parquet, filesystem=disk)
            scanner = rows.scanner(**options, batch_size=BATCH_ROWS, batch_readahead=4, fragment_readahead=1)
            yield from scanner.to_batches()


@dataclass(frozen=True)
class _Scan:
    """One reading of shards. Not a scanner of Arrow's: its threads would wait for batches that they are to read."""

    projected_schema: pa.Schema
    read: Callable[[], Iterator[pa.RecordBatch]]

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows; whoever asks for a batch reads it."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.read())


def tables(lake: Lineage, say: Say) -> dict[str, Relation]:
    """Every table of the lake; `say` hears which artifacts are left out of it."""
    return {
        **{name: _relation(lake, name, partial(lake.artifacts, name), say) for name in TABLES},
        "updates": Relation(_UPDATES, partial(_updates, lake)),
    }


def artifact(lake: Lineage, ref: Ref, say: Say) -> Relation:
    """The rows of one artifact, as its table has them."""
    return _relation(lake, ref.table, lambda: [ref], say)


def _relation(lake: Lineage, name: str, refs: Callable[[], Sequence[Ref]], say: Say) -> Relation:
    projections = {
        "rollouts": f"* exclude ({_USED_IN}) replace ({_unique('rollout_id', 'artifact')} as rollout_id, "
        f"coalesce({_USED_IN}, round)::int as round)",
        "scores": f"* replace ({_unique('rollout_id', _JUDGED)} as rollout_id)",
    }

    def read() -> ds.Dataset:
        added = {"rollouts": (_USED_IN, lake.rounds), "scores": (_JUDGED, lake.judged)}
        more, values = added.get(name, ("", dict[str, str]))
        return _rows(lake, name, refs(), say, more, values())

    return Relation(_known(name), read, projections.get(name, "*"))


def _updates(lake: Lineage) -> ds.Dataset:
    """Return a query of the rows of updates, each with the digest of the checkpoint that it ended in."""
    shards = [
        (path, ds.field("checkpoint") == ref.digest)
        for ref in lake.artifacts(CHECKPOINTS)
        for path in lake.verified(ref, ROWS_FILE)
    ]
    return _Frugal.of(_UPDATES, shards)


def views(lake: Lineage, say: Say) -> tuple[dict[str, Relation], dict[str, View]]:
    """The views `samples` and `help`, and the relations that they alone read."""

    def relation(name: str) -> Relation:
        def read() -> ds.Dataset:
            digests = sorted({digest for digest in lake.used().column(name).to_pylist() if digest})
            return _rows(lake, name, [Ref(name, digest) for digest in digests], say)

        return Relation(_known(name), read)

    hidden = {f"_{name}": relation(name) for name in ("rollouts", "scores", "problems")}
    needs = ("_used", *hidden)
    found = {"samples": View(needs, _samples), "help": View(needs, _help)}
    return {**hidden, "_used": Relation(USED, lake.used)}, found


def _known(name: str) -> pa.Schema:
    schema = TABLES[name]
    known = pa.schema([*schema.arrow, *(pa.field(c.name, c.type) for c in schema.columns if c.sparse)])
    more = {"scores": [(_JUDGED, pa.string())], "rollouts": [(_USED_IN, pa.int64())]}
    return pa.schema([*known, ("artifact", pa.string()), *more.get(name, [])])


def _unique(name: str, digest: str) -> str:
    """The id as an SQL expression; as it is where it begins with the digest already, or there is none."""
    key = f"{digest}[:{KEY_DIGITS}] || ':'"
    return f"case when {digest} is null or starts_with({name}, {key}) then {name} else {key} || {name} end"


def _rows(
    lake: Lineage,
    name: str,
    refs: Iterable[Ref],
    say: Say,
    more: str = "",
    values: Mapping[str, str] | Mapping[str, int] | None = None,
) -> ds.Dataset:
    """The verified shards of artifacts with their digest, and a value of `more`, as columns; what a file lacks is null.

    Artifacts whose types are not their table's, old or made by hand, are named and left out.
    """
    schemas, shards = {0: _known(name)}, list[tuple[Path, ds.Expression]]()
    known: dict[int, str] = {}  # most shards have the same schema, which is then one object
    for ref in refs:
        try:
            own = [(path, lake.index.schema(ref, path)) for path in lake.verified(ref, "*.parquet")]
            for _, schema in own:
                if id(schema) not in known:
                    known[id(schema)] = misfit(schema, TABLES[name])
            odd = next(filter(None, (known[id(schema)] for _, schema in own)), "")
        except pa.ArrowInvalid:
            odd, own = "it holds a file that is no Parquet", []
        if odd:
            say(f"{ref} is left out: {odd}")
            continue
        source = ds.field("artifact") == ref.digest
        if values and ref.digest in values:
            source &= ds.field(more) == values[ref.digest]
        for path, schema in own:
            schemas[id(schema)] = schema
            shards.append((path, source))
    return _Frugal.of(_merged(list(schemas.values())), shards)


def _merged(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """All columns; one that two files have with types that do not go together is text, or left out if it is nested."""
    fields: dict[str, list[pa.Field]] = {}
    for schema in schemas:
        for field in schema:
            fields.setdefault(field.name, []).append(field.remove_metadata())
    merged = [_field(name, same if name not in _ADDED else same[:1]) for name, same in fields.items()]
    return pa.schema([field for field in merged if field is not None])


def _field(name: str, same: Sequence[pa.Field]) -> pa.Field | None:
    try:
        return pa.unify_schemas([pa.schema([field]) for field in same], promote_options="permissive").field(0)
    except pa.ArrowTypeError:
        return None if any(pa.types.is_nested(field.type) for field in same) else pa.field(name, pa.string())


def _samples(relations: Mapping[str, duckdb.DuckDBPyRelation]) -> duckdb.DuckDBPyRelation:
    rollouts, problems = relations["_rollouts"], relations["_problems"]
    own = {
        name: f"_rollouts.{name}::varchar" if name in rollouts.columns else "null"
        for name in ("question", "answer", "domain")
    }
    columns = f"""
        _used.run, _used.round, _used.purpose, _rollouts.problem_id,
        coalesce(_problems.question, _problems.messages[-1].content, {own["question"]}) as question,
        coalesce(_problems.domain, {own["domain"]}) as domain, coalesce(_problems.answer, {own["answer"]}) as answer,
        _rollouts.group_id, _rollouts.sample, coalesce(_rollouts.hint_level, 0) as hint_level, _rollouts.completion,
        len(_rollouts.completion_tokens) as completion_tokens, _rollouts.finish_reason,
        _scores.reward, _scores.correct, _scores.outcome, _scores.components as parts, _scores.extracted,
        coalesce(_scores.error, _rollouts.error) as error, _scores.verifier,
        _rollouts.policy, _rollouts.origin, _rollouts.use, _rollouts.parent, _rollouts.recall, _rollouts.own_gold,
        _rollouts.temperature,
        {_unique("_rollouts.rollout_id", "_rollouts.artifact")} as rollout_id, _used.rollouts as rollouts_artifact,
        _used.scores as scores_artifact
    """
    same_rollout = "_scores.rollout_id = _rollouts.rollout_id"
    same_problem = "_problems.problem_id = _rollouts.problem_id"
    return (
        relations["_used"]
        .join(rollouts, "_rollouts.artifact = _used.rollouts")
        .join(relations["_scores"], f"_scores.artifact = _used.scores and {same_rollout}", how="left")
        .join(problems, f"_problems.artifact = _used.problems and {same_problem}", how="left")
        .project(columns)
    )


def _help(relations: Mapping[str, duckdb.DuckDBPyRelation]) -> duckdb.DuckDBPyRelation:
    """By run, round and level of help: rollouts of trainings that were judged, as `effect_of_help` counts them."""
    helped = "(coalesce(_rollouts.hint_level, 0) > 0 or _rollouts.messages is not null)"
    asked = (
        relations["_used"]
        .join(relations["_rollouts"], "_rollouts.artifact = _used.rollouts")
        .join(relations["_scores"], "_scores.artifact = _used.scores and _scores.rollout_id = _rollouts.rollout_id")
        .filter(f"""
            _used.run is not null and _scores.correct is not null and _rollouts.use is null
            and _used.purpose <> 'profile' and _used.purpose not like 'eval%'
            and _rollouts.parent is null and _rollouts.recall is null and _rollouts.own_gold is null
            and (coalesce(_rollouts.origin, '{OWN}') = '{OWN}' or {helped} and _rollouts.origin <> '{EXPLAINED}')
        """)
        .project(f"""
            _used.run as run, _used.round as round, _rollouts.problem_id as problem_id, {helped} as helped,
            coalesce(_rollouts.hint_level, 0) as hint_level, _scores.correct::int as correct,
            len(_rollouts.prompt_tokens) as prompt, len(_rollouts.completion_tokens) as completion
        """)
    )
    level = "run, round, problem_id, helped, hint_level"
    sums = "count(*) as n, sum(correct) as k, sum(prompt) as prompt, sum(completion) as completion"
    bare = "filter (not helped) over (partition by run, round, problem_id)"  # without help there is one level
    both = asked.aggregate(f"{level}, {sums}", level).project(
        f"*, max(n) {bare} as bare_n, max(k) {bare} as bare_k, max(prompt / n) {bare} as bare_prompt"
    )
    rescued = "helped and k > 0 and bare_k = 0"
    every = both.project(f"*, min(round) filter ({rescued}) over (partition by run, problem_id) as first")
    paired = "filter (helped and bare_n is not null)"
    since = "filter (not helped and first < round)"
    return every.aggregate(
        f"""
        run, round, helped, hint_level, count(*) as problems, sum(n)::bigint as rollouts, sum(k) / sum(n) as accuracy,
        sum(n) {paired}::bigint as paired_rollouts, sum(k) {paired} / sum(n) {paired} as paired_accuracy,
        sum(bare_k) filter (helped) / sum(bare_n) filter (helped) as bare_accuracy,
        count(*) filter ({rescued}) as rescued,
        sum(prompt - n * bare_prompt) filter (helped)::bigint as tokens_of_help, sum(completion)::bigint as tokens,
        sum(n) {since}::bigint as once_rescued, sum(k) {since} / sum(n) {since} as once_rescued_accuracy
        """,
        "run, round, helped, hint_level",
    )
