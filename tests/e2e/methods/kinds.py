"""Problems for methods whose rewards need other golds than those of the bundled tasks."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

SAMPLES = Path(__file__).parents[3] / "data" / "samples"
GRAPHS = (
    {"nodes": ["man", "horse", "hat"], "edges": [["man", "on", "horse"], ["man", "has", "hat"]]},
    {"nodes": ["man", "horse"], "edges": [["man", "beside", "horse"]]},
    {"nodes": ["dog"], "edges": []},
)
SOLVED: Mapping[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "several": ({"boxes": [[0, 0, 10, 10], [20, 0, 30, 10]]}, ([[20, 0, 30, 10], [0, 0, 10, 5]], [[0, 0, 10, 10]])),
    "spans": ({"span": [10, 20]}, ([10, 20], [15, 25], [30, 40])),
    "graphs": ({"graph": GRAPHS[0]}, GRAPHS),
    "actions": (
        {"action": {"action": "click", "box": [10, 10, 30, 30]}},
        ({"action": "click", "point": [15, 15]}, {"action": "click", "point": [40, 15]}, {"action": "type"}),
    ),
    "plans": ({"actions": ["go", "open", "take"]}, (["go", "open", "take"], ["go", "take"], ["open"])),
    "ranking": ({"relevance": {"a": 3, "b": 1, "c": 0}}, ({"a": 3, "b": 1, "c": 0}, {"a": 0, "b": 2, "c": 2}, ["c"])),
    "calls": (
        {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}], "tools": {"add": ["a", "b"]}},
        ([{"name": "add", "arguments": {"a": 1, "b": 2}}], [{"name": "add", "arguments": {"a": 1, "b": 3}}], []),
    ),
}
"""Golds, and worked solutions of which some are wrong: given in every group, since the policy writes nothing of the
kind."""


def write_kinds(home: Path) -> None:
    """Write problems of these kinds beside those of the tiny recipe."""
    for name, (golds, solutions) in SOLVED.items():
        said = [json.dumps(solutions[at % len(solutions)]) for at in range(24)]
        rows = [{"question": f"{name} {at}\n", **golds, "solution": text} for at, text in enumerate(said)]
        _write(home / f"{name}.jsonl", [{**row, "answer": None} for row in rows])
    programs = _bundled("programs")
    _write(home / "code.jsonl", [{**row, "answer": row["solution"].split("\n", 1)[1][:-4]} for row in programs])
    _write(home / "states.jsonl", [{**row, "states": row["box"]} for row in _bundled("boxes")])
    translated = [{**row, "words": row["answer"].split()} for row in _bundled("translation")]
    points = [
        {"terms": row["words"][::2], "key_points": [[row["words"]]], "constraints": [{"contains": row["words"][0]}]}
        for row in translated
    ]
    _write(home / "terms.jsonl", [{**row, **more} for row, more in zip(translated, points, strict=True)])


def _bundled(kind: str) -> list[dict[str, Any]]:
    """The problems of a bundled task, without their ids."""
    rows = pq.read_table(SAMPLES / f"{kind}.parquet", columns=["question", "answer", "solution", "extra"]).to_pylist()
    extra = [json.loads(row.pop("extra")) for row in rows]
    return [{**row, **more} for row, more in zip(rows, extra, strict=True)]


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def words_of(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"\w+", text.lower())
