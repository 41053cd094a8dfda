"""The Arrow schemas of every table: one place where a column is named, documented and given its unit.

Readers accept files that have the required columns; missing optional ones are read as null and unknown ones are kept.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gradus.components.settings import MAX_TOKENS
from gradus.data.lake.columns import Column, TableSchema, kind_of

OF_PROBLEM, OF_PLAN, OF_PARTS = "problem.", "plan.", "parts."
"""Begin what components call a column of the problem or a key of its `extra`, one of the plan, one reward's value."""
MARKS, OF_MARKS = "marks", "marks."
"""The column of marked parts of completions, and the beginning of what components call the marks of one name."""
PLACES = ("token_starts", "token_ends")
"""The names by which they read the first character of each completion token, and the one behind its last."""
NO_TRACKER = (
    *("problem", "plan", "parts", "marks", "hint", "facts", "stored", "segments"),
    *("now", "old", "sampler", "start", "phase", "ema", "lagged", "policy", "reference", "teacher", "critic"),
)
"""Names before the dot of columns that are not a tracker's."""
LENGTH = "length"
"""The name by which they read the number of completion tokens, which no table has."""
OWN_GOLD = "own_gold"
"""The column with the gold answer of rows that are asked something else than their problem."""
OWN = "own"
"""The origin of rows that the policy itself wrote."""
EXPLAINED = "explained"
"""The origin of explanations whose prompt states the answer (the wave `explain`)."""


MAX_SAMPLES = 100_000
"""Completions of a problem that a plan may ask for."""
MAX_TEMPERATURE = 100.0
MAX_WHOLE = 2**31 - 1
"""Places, rounds, levels and token ids are at most this."""
MAX_LOGPROB = 0.01
"""A log-probability is at most 0; kernels of low precision exceed it by a little."""

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_SMALL, _TOKENS = pa.int32(), pa.list_(pa.int32())
_sparse = partial(Column, sparse=True)
_whole = partial(Column, low=0, high=MAX_WHOLE)
_SPANS = pa.list_(
    pa.struct([("start", pa.int32()), ("end", pa.int32()), ("role", _TEXT), ("source", _TEXT), ("trained", _BOOL)])
)
"""Half-open ranges of completion tokens; source is sampled, inserted, observed or given."""
_MARKS = pa.list_(
    pa.struct([("name", _TEXT), ("start", pa.int32()), ("end", pa.int32()), ("value", _FLOAT), ("label", _TEXT)])
)
"""Half-open ranges of completion tokens; start and end are null in a completion of text alone."""
_MESSAGES = pa.list_(pa.struct([("role", _TEXT), ("content", _TEXT)]))

_OF_WAVES = (
    _sparse("plan_id", _TEXT, "the row of the plan; null: its group_id, which no other row has"),
    _sparse("wave", _SMALL, "number of the wave that planned it; null is 0, curate", low=0),
    _sparse("call", _SMALL, "call of the wave that planned it, from 0", low=0),
    _sparse("messages", _MESSAGES, "the prompt as chat messages, if it is not that of the problem"),
    _sparse("role", _TEXT, "which model of the recipe samples ([roles.NAME]); null: the policy"),
    _sparse("use", _TEXT, "purpose of the rows (judge, critique ...); null: learn, they are trained on"),
    _sparse("about", pa.list_(_TEXT), "the rollouts that the rows say something of, by their ids"),
    _sparse(OWN_GOLD, _TEXT, "the gold answer that the rows are judged by; null: that of their problem"),
)
"""Columns of plans and rollouts that waves after the first fill in."""
_SHOWN = _sparse("shown", _TEXT, "sentence above the hint in a prompt; null: it begins a correct solution")
_SOURCE = _sparse("source", _TEXT, "who wrote a text that was given, as its file says")
_OF_STORED = (
    _sparse("parent", _TEXT, "rollout_id of the rollout that it continues"),
    _sparse("replaces", _BOOL, "true: its parent is left out of what is learned from"),
    _sparse("recall", _TEXT, "rollout_id of the stored rollout that it takes up again as it is"),
)
"""Columns of plans and rollouts that build on stored rollouts."""

PROBLEMS = TableSchema(
    "problems",
    ("problem_id",),
    (
        Column("problem_id", _TEXT, "given by the source, or a hash of question and messages", required=True),
        Column("question", _TEXT, "the problem as plain text; null where messages are given", required=True),
        Column("messages", _MESSAGES, "the problem as chat messages; null where a question is given"),
        Column("answer", _TEXT, "the gold answer, normalised; null where there is none"),
        Column("solution", _TEXT, "a worked solution, one step a line where steps are known"),
        Column("domain", _TEXT, "what evaluation groups by (algebra, chain_sum/3 ...)"),
        Column("source", _TEXT, "where the row came from (gsm8k/train ...)"),
        Column("extra", _TEXT, "everything else of the source row, as a JSON object"),
        _sparse("answer_given", _TEXT, "the gold as the source writes it; null if that is `answer`"),
    ),
)
HINTS = TableSchema(
    "hints",
    ("problem_id", "strategy", "level"),
    (
        Column("problem_id", _TEXT, "the problem hinted at", required=True),
        Column("strategy", _TEXT, "which hint strategy wrote it (prefix, tiers ...)", required=True),
        _whole("level", _SMALL, "0 is no hint; higher reveals more", required=True),
        Column("fraction", _FLOAT, "share of the solution's steps revealed, 0 to 1", low=0, high=1),
        Column("text", _TEXT, "what the policy is shown", required=True),
        Column("leaks_answer", _BOOL, "true where the text states the gold answer (for waves alone that say so)"),
        _SHOWN,
    ),
)
PLAN = TableSchema(
    "plan",
    ("group_id",),
    (
        Column("problem_id", _TEXT, "the problem to roll out", required=True),
        Column("group_id", _TEXT, "identifies the group: problem, round and hint level"),
        Column("n", _SMALL, "completions to sample", required=True, low=1, high=MAX_SAMPLES),
        _whole("hint_level", _SMALL, "level of the hint shown; 0 for none"),
        Column("hint_text", _TEXT, "the hint shown; null for none"),
        _SHOWN,
        Column("temperature", _FLOAT, "sampling temperature", low=0, high=MAX_TEMPERATURE),
        Column("max_tokens", _SMALL, "limit of completion tokens", low=1, high=MAX_TOKENS),
        Column("seed", _INT, "seed of the group; sample seeds derive from it"),
        Column("reason", _TEXT, "why this problem, this round"),
        *_OF_WAVES,
        _sparse("top_p", _FLOAT, "nucleus mass to sample from, if not that of the rollout", above=0, high=1),
        _sparse("top_k", _SMALL, "most probable tokens to sample from, if not those of the rollout", low=0),
        *_OF_STORED,
        _sparse(
            "branch_at",
            _SMALL,
            "completion tokens of the parent that are kept; below 0 counts from its end, null keeps all",
        ),
        _sparse("inserted", _TEXT, "text behind the kept tokens, which nobody sampled and which carries no loss"),
        _sparse("inherits", _TEXT, "context, or trained: the kept tokens carry loss; null is context"),
        _sparse("given", _TEXT, "the completion, which is there already and which nobody samples"),
        _SOURCE,
        _sparse("origin", _TEXT, "what its rows are called by terms of the objective; null: own"),
        _sparse(
            "trained_prompt",
            _TEXT,
            "the prompt that the rows are trained for: problem, the problem's own; null: as sampled",
        ),
    ),
    own_key="plan_id",
)
ROLLOUTS = TableSchema(
    "rollouts",
    ("rollout_id",),
    (
        Column("rollout_id", _TEXT, "first 16 hex digits of the artifact's digest, group_id, sample: unique in a lake"),
        Column("problem_id", _TEXT, "the problem answered", required=True),
        Column("group_id", _TEXT, "completions that are compared with each other"),
        _whole("sample", _SMALL, "index within the row of the plan"),
        _whole("round", _SMALL, "round of the run; 0 before training and in files of evaluations"),
        Column("completion", _TEXT, "the sampled text", required=True),
        _whole("prompt_tokens", _TOKENS, "token ids of the prompt as the policy saw it"),
        _whole("completion_tokens", _TOKENS, "token ids sampled, end token included"),
        Column(
            "logprobs",
            pa.list_(pa.float32()),
            "sampler's log-probability of each sampled token, nats; null for one that nobody sampled",
            high=MAX_LOGPROB,
        ),
        Column("finish_reason", _TEXT, "stop, length, or error where the request failed"),
        Column(
            "error",
            _TEXT,
            "why the request failed, or what of the completion could not be stored as it came; null for none",
        ),
        _whole("hint_level", _SMALL, "level of the hint shown; 0 for none"),
        Column("hint_text", _TEXT, "the hint shown; null for none"),
        Column("policy", _TEXT, "digest of the checkpoint that sampled"),
        Column("engine", _TEXT, "engine name and version"),
        Column("temperature", _FLOAT, "sampling temperature", low=0, high=MAX_TEMPERATURE),
        Column("top_p", _FLOAT, "nucleus mass sampled from", above=0, high=1),
        _whole("top_k", _SMALL, "most probable tokens sampled from; 0 for all"),
        Column("seed", _INT, "seed of this sample"),
        Column("origin", _TEXT, "who wrote the completion: own, expert, teacher ...; null is own"),
        Column("spans", _SPANS, "what the completion's tokens are, in order; null is one span, sampled and trained"),
        _whole("trained_prompt_tokens", _TOKENS, "prompt that the row is trained for; null: as sampled"),
        *_OF_WAVES,
        *_OF_STORED,
        _SOURCE,
    ),
)
SCORES = TableSchema(
    "scores",
    ("rollout_id",),
    (
        Column("rollout_id", _TEXT, "the rollout judged", required=True),
        Column("problem_id", _TEXT, "its problem", required=True),
        Column("reward", _FLOAT, "weighted sum of the components; null where judging failed", required=True),
        Column("correct", _BOOL, "the verdict: whether the answer is right; null if no verdict was reached"),
        Column("components", pa.map_(_TEXT, _FLOAT), "each reward's own value, unweighted"),
        Column("extracted", _TEXT, "the answer read from the completion"),
        Column("outcome", _TEXT, "correct, wrong, unparsed, timeout or error"),
        Column("error", _TEXT, "what went wrong, where outcome is timeout or error"),
        Column("verifier", _TEXT, "name@version of the judge"),
        _sparse(MARKS, _MARKS, "parts of the completion that the rewards marked, in tokens"),
    ),
)
DIFFICULTY = TableSchema(
    "difficulty",
    ("problem_id",),
    (
        Column("problem_id", _TEXT, "the problem measured", required=True),
        Column("n", _INT, "judged rollouts", required=True, low=0),
        Column("k", _INT, "correct ones", required=True, low=0),
        Column("pass_rate", _FLOAT, "k / n; where n is 0, that of an unknown number of rollouts", low=0, high=1),
        Column("variance", _FLOAT, "pass_rate * (1 - pass_rate)", low=0, high=1),
        _whole("last_round", _SMALL, "round of the newest measurement"),
        Column("history", pa.list_(_FLOAT), "pass rate of each measurement, oldest first", low=0, high=1),
        Column("policies", pa.list_(_TEXT), "policy digest of each measurement, oldest first"),
        Column("alpha", _FLOAT, "Beta posterior: 1 + correct", above=0),
        Column("beta", _FLOAT, "Beta posterior: 1 + wrong", above=0),
        Column("reward_n", _INT, "rollouts with a reward, judged or not; null in older tables", low=0),
        Column("reward_mean", _FLOAT, "mean of their rewards; null if there are none"),
        Column("reward_variance", _FLOAT, "population variance of their rewards (divided by reward_n)", low=0),
        Column("reward_policy", _TEXT, "policy digest of the rollouts that the three reward columns describe"),
    ),
)
BATCH = TableSchema(
    "batch",
    ("rollout_id",),
    (
        Column("rollout_id", _TEXT, "the rollout", required=True),
        Column("problem_id", _TEXT, "its problem", required=True),
        Column("group_id", _TEXT, "rows that are compared with each other", required=True),
        Column("reward", _FLOAT, "the reward that is learned from; null where there is none"),
        Column("taken", _BOOL, "whether the update learns from it", required=True),
        Column("reason", _TEXT, "why it is not taken; null if it is"),
        _sparse("weight", _FLOAT, "factor of the loss of its tokens; null is 1"),
        _sparse("term", _TEXT, "the term of the objective that takes it, as `rows` of a term names it"),
        _sparse("credit", pa.list_(_FLOAT), "what a shape gave each completion token; null is 0 for all"),
        _sparse(MARKS, _MARKS, "parts of the completion that rewards and shapes marked, in tokens"),
    ),
)
"""The rows of an update as shapes decide them; columns that the objective reads of problems and plans stand behind."""
EVALUATIONS = TableSchema(
    "evaluations",
    ("checkpoint", "suite", "problem_id"),
    (
        Column("checkpoint", _TEXT, "digest of the policy evaluated", required=True),
        Column("suite", _TEXT, "name of the problem set", required=True),
        Column("problem_id", _TEXT, "the problem", required=True),
        Column("domain", _TEXT, "its domain"),
        Column("n", _INT, "judged rollouts", required=True),
        Column("k", _INT, "correct ones", required=True),
        Column("majority_correct", _BOOL, "whether the most frequent answer is right"),
        Column("mean_tokens", _FLOAT, "mean completion length, tokens"),
        Column("reward_n", _INT, "rollouts with a reward, judged or not; null in older tables"),
        Column("reward_mean", _FLOAT, "mean of their rewards; null if there are none"),
        Column("reward_variance", _FLOAT, "population variance of their rewards (divided by reward_n)"),
    ),
)

TRACKERS = TableSchema("trackers", (), ())
"""Rows that a tracker keeps: its own key columns, and NAME.COLUMN (gradus.data.curation.tracked)."""
MEASURES = TableSchema("measures", (), ())
"""Columns that a measure made, NAME.COLUMN behind problem_id, rollout_id, or trace_id of a text of a file."""

UPDATES = TableSchema(
    "updates",
    ("rollout_id",),
    (
        Column("rollout_id", _TEXT, "the rollout learnt from", required=True),
        Column("problem_id", _TEXT, "its problem", required=True),
        Column("origin", _TEXT, "who wrote it: own, expert, teacher ..."),
        Column("reward", _FLOAT, "its reward"),
        Column("advantage", _FLOAT, "mean over its counted tokens in its last step"),
        Column("weight", _FLOAT, "mean factor of its tokens' losses: token and importance weights"),
        Column("zero_gradient", _BOOL, "whether its gradient was exactly zero; null if no step took it"),
        Column("mismatch", _FLOAT, "mean |trainer's - sampler's log-prob| over its compared tokens, nats; null: none"),
        Column("logprobs", pa.list_(pa.float32()), "trainer's log-prob of each token before the update, if kept"),
    ),
)
"""Use of each row in an update: a file of its checkpoint, ROWS_FILE, and a table of `gradus sql`."""
ROWS_FILE = "rows.parquet"

GRADIENTS = TableSchema(
    "gradients",
    ("rollout_id",),
    (
        Column("rollout_id", _TEXT, "the rollout", required=True),
        Column("problem_id", _TEXT, "its problem", required=True),
        Column("origin", _TEXT, "who wrote it: own, expert, teacher ..."),
        Column("reward", _FLOAT, "its reward"),
        Column("advantage", _FLOAT, "mean over its tokens of the first advantage"),
        Column("pull", _FLOAT, "-dL/d(log-prob) summed over its tokens; positive: it is to become more likely"),
        Column("mass", _FLOAT, "|advantage| x its share of the loss, summed: what it would weigh without clips"),
        Column("masked_frac", _FLOAT, "share of mass that a weight or correction sets to 0", low=0, high=1),
        Column("clipped_frac", _FLOAT, "share of the mass elsewhere at which the loss is flat", low=0, high=1),
    ),
)
"""The gradient of an objective on stored rollouts, which no step follows; beside it HALVES_FILE."""
HALVES_FILE = "halves.safetensors"
HALVES = ("first", "second")
"""The tensors of that file: the gradient of either half of the groups; their sum is the whole."""

_ALL = (PROBLEMS, HINTS, PLAN, ROLLOUTS, SCORES, BATCH, DIFFICULTY, TRACKERS, MEASURES, EVALUATIONS, GRADIENTS)
TABLES = {table.name: table for table in _ALL}
CHECKPOINTS = "checkpoints"
BASE = "base"
"""The role in which an adapter names the policy that it cannot be used without."""
KEY_DIGITS = 16
"""Hex digits of an artifact's digest that begin the ids of its rollouts."""


def sample_key(digest: str, name: str) -> str:
    """The id of a rollout that is called `name` within the artifact `digest`; no other row of a lake has it.

    >>> sample_key("00aa11bb22cc33dd44ee55ff66aa77bb", "p1@r0h0:3")
    '00aa11bb22cc33dd:p1@r0h0:3'
    """
    return f"{digest[:KEY_DIGITS]}:{name}"


def misfit(found: pa.Schema, schema: TableSchema) -> str:
    """Return the column of a file whose type its table cannot have; empty if none has.

    Numbers may be wider than stated, and whatever has a text may stand for one.

    >>> misfit(pa.schema([("problem_id", pa.string()), ("answer", pa.list_(pa.string()))]), PROBLEMS)
    'its column answer is not text'
    """
    for column in schema.columns:
        given = found.field(column.name).type if column.name in found.names else column.type
        if given != column.type and not _goes_with(given, column.type):
            return f"its column {column.name} is not {kind_of(column.type)}"
    return ""


def _goes_with(given: pa.DataType, wanted: pa.DataType) -> bool:
    if wanted == _TEXT:
        return not pa.types.is_nested(given)
    try:
        alone = [pa.schema([("", type_)]) for type_ in (given, wanted)]
        pa.unify_schemas(alone, promote_options="permissive")
    except pa.ArrowTypeError:
        return False
    return True


def cast_to_schema(table: pa.Table, schema: TableSchema) -> pa.Table:
    """Cast a table to the schema: required columns present, missing ones null, unknown ones kept at the end.

    Raises KeyError naming the first required column that is missing, pa.ArrowInvalid where a cast loses values.
    """
    if table.schema.equals(schema.arrow, check_metadata=True):
        return table
    for name in schema.required:
        if name not in table.column_names:
            raise KeyError(name)
    fields = [*schema.arrow, *(field for field in table.schema if field.name not in schema.arrow.names)]
    arrays = [
        table.column(each.name).cast(each.type) if each.name in table.column_names else pa.nulls(len(table), each.type)
        for each in fields
    ]
    return pa.table(arrays, schema=pa.schema(fields, metadata=schema.arrow.metadata))


def read_shard(path: Path, schema: TableSchema, columns: Sequence[str] | None) -> pa.Table:
    """Return the rows of a Parquet file in the columns of a table; None reads all that the file has."""
    with pq.ParquetFile(path, memory_map=True) as file:
        there = None if columns is None else [name for name in file.schema_arrow.names if name in columns]
        return cast_to_schema(file.read(there), schema)
