"""Files of tables that cannot be what they are given as: problems, rollouts, plans, difficulty, scores, other systems'.

A table is given to the verb that reads it, once as JSONL and once as Parquet where both can hold what is wrong.
"""

import datetime as dt
import io
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.malformed.program import BUNDLED, Case, Content

Row = Mapping[str, Any]

QUESTION = {"problem_id": "p1", "question": "1 + 1 =", "answer": "2", "solution": "1+1=2\nso 2"}
ROLLOUT = {"problem_id": "p1", "completion": "\\boxed{2}", "answer": "2"}
PLAN = {"problem_id": "p1", "n": 1, "max_tokens": 4, "temperature": 1.0}
DIFFICULTY = {"problem_id": "p1", "n": 4, "k": 2}
LEARNT = {
    "rollout_id": "r1",
    "problem_id": "p1",
    "completion": "2",
    "policy": BUNDLED,
    "temperature": 1.0,
    "prompt_tokens": [1, 2],
    "completion_tokens": [3, 1],
    "logprobs": [-0.5, -0.1],
    "finish_reason": "stop",
}
SCORE = {"rollout_id": "r1", "problem_id": "p1", "reward": 1.0}
VERL = {"input": "1 + 1 =", "output": "2", "gts": "2", "score": 1.0, "step": 1}
HINTED = {"question": "q", "solution_breakdown_parts": ["a"], "reward_model": {"ground_truth": "2"}}

READERS: Mapping[str, tuple[Row, tuple[str, ...]]] = {
    "ingest": (QUESTION, ("ingest", "FILE")),
    "hint": (QUESTION, ("hint", "--problems", "FILE")),
    "score": (ROLLOUT, ("score", "--rollouts", "FILE")),
    "rollout": (PLAN, ("rollout", "--plan", "FILE", "--problems", "good.jsonl")),
    "curate": (DIFFICULTY, ("curate", "--problems", "good.jsonl", "--difficulty", "FILE")),
    "update": (LEARNT, ("update", "--rollouts", "FILE", "--scores", "scores.jsonl")),
    "update, scores": (SCORE, ("update", "--rollouts", "learnt.jsonl", "--scores", "FILE")),
    "import": (VERL, ("import", "FILE", "--from", "verl")),
}
"""A good row by who reads it, and the command."""


def jsonl(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(columns: Mapping[str, Any]) -> Callable[[Path], None]:
    return lambda path: pq.write_table(pa.table(dict(columns)), path)


def of_reader(reader: str, what: str, name: str, content: Content, **env: str) -> Case:
    _, words = READERS[reader]
    return Case(f"{reader}: {what}", tuple(word.replace("FILE", name) for word in words), {name: content}, env)


def _bytes_of(row: Row) -> bytes:
    written = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row)]), written)
    return written.getvalue()


def files(row: Row) -> Iterator[tuple[str, str, Content]]:
    """What is wrong with a whole file: a word for it, the file's name, its content."""
    good, whole = jsonl(row), _bytes_of(row)
    first = next(iter(row))
    yield "empty", "f.jsonl", b""
    yield "blank lines", "f.jsonl", b"\n \n\t\n"
    yield "random bytes", "f.jsonl", bytes(range(256)) * 4
    yield "NUL bytes", "f.jsonl", b"\0" * 500
    yield "UTF-16", "f.jsonl", good.decode().encode("utf-16")
    yield "cut off", "f.jsonl", good[: len(good) // 2]
    yield "a list", "f.json", json.dumps([[dict(row)]]).encode()
    yield "a text", "f.jsonl", b'"text"\n'
    yield "null", "f.jsonl", b"null\n"
    yield "an empty object", "f.jsonl", b"{}\n"
    yield "deep", "f.jsonl", b'{"a":' * 100_000
    yield "deep in a .json", "f.json", b'{"a":' * 100_000
    yield "deep, closed", "f.jsonl", (b'{"' + first.encode() + b'":' + b"[" * 3000 + b"]" * 3000 + b"}\n")
    yield "a long line", "f.jsonl", b"x" * 2_000_000
    yield "a key twice", "f.jsonl", good.replace(b"{", f'{{"{first}": "other", '.encode(), 1)
    yield "half a surrogate", "f.jsonl", json.dumps({**row, first: "\ud800"}).encode()
    yield "no keys", "f.jsonl", jsonl({"a": 1})
    yield "null keys", "f.jsonl", jsonl(dict.fromkeys(row))
    yield "comma separated", "f.csv", b",".join(key.encode() for key in row)
    yield "a text file", "f.txt", good
    yield "no suffix", "f", good
    yield "Parquet by name", "f.parquet", good
    yield "JSONL by name", "f.jsonl", whole
    yield "Parquet cut off", "f.parquet", whole[:-20]
    yield "Parquet, one byte", "f.parquet", whole[:4] + bytes([whole[4] ^ 255]) + whole[5:]
    yield "Parquet, empty", "f.parquet", b"PAR1PAR1"
    yield "Parquet, no rows", "f.parquet", parquet({key: pa.array([], pa.string()) for key in row})
    yield "Parquet, a column twice", "f.parquet", _twice(row)
    yield "a folder", "f.jsonl", Path.mkdir
    yield "a link to itself", "f.jsonl", lambda path: path.symlink_to(path)
    yield "a link to nothing", "f.jsonl", lambda path: path.symlink_to("nothing")


def _twice(row: Row) -> Callable[[Path], None]:
    table = pa.Table.from_pylist([dict(row)])
    return lambda path: pq.write_table(table.append_column(table.field(0), table.column(0)), path)


DAY = dt.date(2024, 1, 2)
ODD = {
    "a date": pa.array([DAY]),
    "a time": pa.array([dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC)], pa.timestamp("us", "UTC")),
    "a duration": pa.array([dt.timedelta(days=20)]),
    "a time of day": pa.array([dt.time(3, 4)]),
    "bytes": pa.array([b"\xff\xfe"]),
    "an object": pa.array([{"x": 1}]),
    "a list": pa.array([["2"]]),
    "lists of lists": pa.array([[[1.5]]]),
    "a map": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
    "a decimal": pa.array([Decimal("1.50")]),
    "a boolean": pa.array([True]),
}
"""One row of a type that no text, number or list of numbers of a table is."""
DATES = ("a date", "a time", "a duration", "a time of day")
TYPED = {
    "ingest": {"question": tuple(ODD), "answer": [name for name in ODD if name not in ("a boolean", "a decimal")]},
    "score": {"completion": tuple(ODD), "answer": ("a date", "a duration", "bytes", "an object", "a list", "a map")},
    "rollout": {"n": [name for name in ODD if name != "a decimal"], "temperature": DATES, "problem_id": ("a list",)},
    "curate": {"k": DATES, "history": (*DATES, "an object", "lists of lists")},
    "update": {"completion_tokens": tuple(ODD), "logprobs": (*DATES, "a list"), "rollout_id": ("a map",)},
    "update, scores": {"reward": tuple(name for name in ODD if name != "a decimal"), "components": ("a date",)},
    "import": {"input": DATES, "output": ("bytes", "an object")},
}
"""Which columns are given which of them."""


def typed() -> Iterator[Case]:
    """Columns of Parquet files in types that they cannot have."""
    for reader, columns in TYPED.items():
        row, _ = READERS[reader]
        for column, kinds in columns.items():
            for kind in kinds:
                given = {key: [value] for key, value in row.items() if key != column}
                content = parquet({**given, column: ODD[kind]})
                yield of_reader(reader, f"{column} is {kind}", "f.parquet", content)


INF = float("inf")
NAN = float("nan")
BAD: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    "ingest": {
        "question": (1, 1.5, True, [], ["q"], {"q": 1}, "", "  ", "a\0b", None),
        "answer": (NAN, INF, -INF, ["2"], [], {"x": 1}, "", " ", None),
        "messages": ("hi", [1], [{"role": "user"}], [{"role": 1, "content": "x"}], {"role": "user"}),
        "solution": (1, ["a"], {"a": 1}),
        "problem_id": (["p"], {"p": 1}, NAN),
        "domain": (["a"], {"a": 1}),
        "source": (["a"], {"a": 1}),
    },
    "score": {
        "problem_id": (None, ["p"], {"p": 1}, 1),
        "completion": (1, ["a"], {"a": 1}, None, True),
        "answer": (NAN, INF, ["2"], {"x": 1}),
        "rollout_id": (1, ["r"]),
        "sample": (-1, 1.5, True, "a", 10**30),
        "hint_level": (-1, 0.5, "x"),
        "temperature": (-1.0, NAN, INF, "hot"),
        "spans": ("x", [1], [{"start": "a"}]),
    },
    "rollout": {
        "problem_id": (None, 1, "nobody"),
        "n": (-2, 0, 1.5, 10**12, 10**30, True, "many", None, [1]),
        "max_tokens": (-1, 0, 1.5, 10**9, "x", True),
        "temperature": (-1, NAN, INF, "hot", True, 1e9),
        "hint_level": (-1, 1.5, "x"),
        "seed": (1.5, "x", 10**30),
    },
    "curate": {
        "n": (-1, 1.5, "x", True, None, NAN),
        "k": (-1, 9, "x", 1.5, None),
        "pass_rate": (-0.1, 1.5, NAN, "x"),
        "reward_variance": (-1.0, NAN),
        "history": ([2.0], [-1.0], "x", [NAN]),
        "reward_n": (-1, 1.5),
    },
    "update": {
        "prompt_tokens": ([-1], [1.5], ["a"], [None], [], "x", [True], [2**31], [10**30], [[1]]),
        "completion_tokens": ([-1, 1], [1.5, 1], ["a", 1], [None, 1], "x", [2**31, 1]),
        "logprobs": ([1.0, -0.1], [NAN, -1.0], [INF, -1.0], [-0.1], ["a", "b"], "x", [[-0.1]]),
        "temperature": (-1.0, NAN, "x"),
        "top_p": (0.0, 1.5, -1.0, NAN),
        "top_k": (-1, 1.5),
        "policy": (1, ["x"], "another"),
    },
    "update, scores": {
        "reward": (NAN, INF, -INF, "good", [1.0], True),
        "rollout_id": ("another", ["r1"], None),
        "correct": ("yes", 2, 0.5),
        "components": ("x", [1]),
    },
    "import": {
        "input": (1, None, ["a"]),
        "output": (1, None, {"a": 1}),
        "step": (-1, 1.5, "x", NAN, True),
        "score": (INF, "good", [1.0], True),
        "gts": (NAN, INF),
    },
}
"""Values of columns that no reader can use."""


def valued() -> Iterator[Case]:
    """Rows with one value that cannot be, as JSONL."""
    for reader, columns in BAD.items():
        row, _ = READERS[reader]
        for column, values in columns.items():
            for value in values:
                content = jsonl({**row, column: value})
                yield of_reader(reader, f"{column} = {str(value)[:20]}", "f.jsonl", content)


def sets() -> Iterator[Case]:
    """Rows that are right alone and wrong together, and those of known formats."""
    yield of_reader("ingest", "a problem_id twice", "f.jsonl", jsonl(QUESTION, {**QUESTION, "question": "2 + 2 ="}))
    yield of_reader("score", "a rollout_id twice", "f.jsonl", jsonl(*[{**ROLLOUT, "rollout_id": "r"}] * 2))
    yield of_reader("rollout", "a group_id twice", "f.jsonl", jsonl(*[{**PLAN, "group_id": "g"}] * 2))
    yield of_reader("curate", "a problem_id twice", "f.jsonl", jsonl(DIFFICULTY, {**DIFFICULTY, "k": 1}))
    yield of_reader("update", "a rollout_id twice", "f.jsonl", jsonl(LEARNT, LEARNT))
    yield of_reader("update, scores", "a rollout_id twice", "f.jsonl", jsonl(SCORE, {**SCORE, "reward": 0.0}))
    for name, row in {
        "no marker": {"question": "q", "answer": "####"},
        "no box": {"problem": "p", "solution": "no box"},
        "tiers that are none": {**HINTED, "solution_breakdown_parts": [1]},
        "rewards that are none": {**HINTED, "rollout_reward_list": ["a"]},
        "rewards without end": {**HINTED, "rollout_reward_list": [NAN]},
        "a truth that is a list": {**HINTED, "reward_model": {"ground_truth": ["2"]}},
        "a truth that is no number": {**HINTED, "reward_model": {"ground_truth": NAN}},
        "a model that is a text": {**HINTED, "reward_model": "x"},
    }.items():
        yield of_reader("ingest", name, "f.jsonl", jsonl(row))


UNFIT = frozenset(
    {
        *("rollout: problem_id = nobody", "curate: k = 9", "update: prompt_tokens = []", "update: logprobs = [-0.1]"),
        *("update: policy = another", "update, scores: rollout_id = another", "update, scores: rollout_id = None"),
    }
)
"""Files that are right alone, and do not fit the others."""


def table_cases(every: int = 1) -> Iterator[Case]:
    """All of them; `--strict` reads problems, whose bad rows are else counted and left out."""
    whole = [of_reader(reader, *odd) for reader, (row, _) in READERS.items() for odd in files(row)]
    num = len(whole) // len(READERS)
    yield from (*whole[:num], *whole[num::every], *list(typed())[::every])
    for case in (*valued(), *sets()):
        words = (*case.words, "--strict") if case.verb == "ingest" else case.words
        yield Case(case.name, words, case.files, makes=case.name in UNFIT)


def good_tables() -> Iterator[Case]:
    """Rows that are right, next to those that are not."""
    rows: Mapping[str, tuple[Row, ...]] = {
        "ingest": (
            {"answer": 2.5},
            {"answer": "NaN"},
            {"answer": "[2]"},
            {"problem_id": 7},
            {"domain": 3},
            {"other": {"a": [1]}},
        ),
        "score": ({"sample": 0}, {"temperature": 0.0}, {"other": DAY.isoformat()}, {"answer": 2}, {"spans": None}),
        "rollout": ({"n": 4.0}, {"temperature": 0}, {"seed": -1}, {"hint_level": None}, {"other": [1, "a"]}),
        "curate": ({"history": [0.0, 1.0]}, {"reward_n": 0}, {"pass_rate": None}, {"k": 4}),
        "update": ({"logprobs": [0.0, -9.5]}, {"top_p": 1.0, "top_k": 0}, {"completion_tokens": [0, 1]}),
        "update, scores": ({"reward": -3}, {"components": {"math": 1.0}}, {"correct": True}),
        "import": ({"score": None}, {"score": NAN}, {"step": 2.0}, {"gts": ["2"]}, {"gts": ["1", "2"]}),
    }
    for reader, changes in rows.items():
        row, _ = READERS[reader]
        for change in changes:
            yield of_reader(reader, f"good {change}", "f.jsonl", jsonl({**row, **change}))
        if reader != "update, scores":
            given = {key: [value] for key, value in row.items()}
            yield of_reader(reader, "good Parquet", "f.parquet", parquet({**given, "other": ODD["a duration"]}))
