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
VIEWS = (("blue sky", "Sky, blue", "blue ski"), ("red hat", "red cat", "a red hat"), ("one", "two", "One."))
"""Two views of one thing, and something similar, in three orders."""
HIT, MISS = (json.dumps({"action": "click", "point": point}) for point in ([5, 5], [50, 5]))
SOLVED: Mapping[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "several": ({"boxes": [[0, 0, 10, 10], [20, 0, 30, 10]]}, ([[20, 0, 30, 10], [0, 0, 10, 5]], [[0, 0, 10, 10]])),
    "spans": ({"span": [10, 20]}, ([10, 20], [15, 25], [30, 40])),
    "graphs": ({"graph": GRAPHS[0]}, GRAPHS),
    "actions": (
        {"action": {"action": "click", "box": [10, 10, 30, 30]}},
        ({"action": "click", "point": [15, 15]}, {"action": "click", "point": [40, 15]}, {"action": "type"}),
    ),
    "screens": (
        {"action": {"action": "click", "box": [10, 10, 30, 30]}},
        (
            '<think>a</think><answer>{"action": "click", "point": [15, 15]}</answer>',
            '<think>a</think>{"action": "click", "point": [15, 15]}',
            '<think>a</think><answer>{"action": "click", "point": [40, 15]}</answer>',
            '<think>a</think><answer>{"action": "type"}</answer>',
        ),
    ),
    "typed": (
        {"action": {"action": "type", "text": "two words"}},
        (
            '<think>a</think>\n<answer>{"action": "type", "text": "words of two"}</answer>',
            '<think>a</think>\n<answer>{"action": "type", "text": "other words"}</answer>',
            '<think>a</think>\n<answer>{"action": "type", "text": "no other words"}</answer>',
        ),
    ),
    "blinks": (
        {"action": {"action": "click", "box": [0, 0, 10, 10]}},
        (
            f"<blink>[[0, 0, 10, 9], [20, 0, 30, 9]]</blink><think>a</think><link>{HIT}</link>",
            f"<blink>[[0, 0, 10, 9], [0, 0, 10, 8]]</blink><think>a</think><link>{HIT}</link>",
            f"<blink>[[0, 0, 10, 4]]</blink><think>a</think><link>{MISS}</link>",
            f"<blink>[[0, 0, 10, 6]]</blink>{MISS}",
        ),
    ),
    "thoughts": (
        {"box": [0, 0, 1, 1]},
        ("<think>12</think>34", "<think>1</think><think>2</think>567", "<think>8</think>\n9", "<think>10"),
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
        texts = [each if isinstance(each, str) else json.dumps(each) for each in solutions]
        said = [texts[at % len(texts)] for at in range(24)]
        rows = [{"question": f"{name} {at}\n", **golds, "solution": text} for at, text in enumerate(said)]
        _write(home / f"{name}.jsonl", [{**row, "answer": None} for row in rows])
    (home / "gui.jsonl").write_text("".join((home / f"{name}.jsonl").read_text() for name in ("screens", "typed")))
    _write(home / "views.jsonl", map(_compared, range(24)))
    programs = _bundled("programs")
    _write(home / "code.jsonl", [{**row, "answer": row["solution"].split("\n", 1)[1][:-4]} for row in programs])
    _write(home / "states.jsonl", [{**row, "states": row["box"]} for row in _bundled("boxes")])
    translated = [{**row, "words": row["answer"].split()} for row in _bundled("translation")]
    points = [
        {"terms": row["words"][::2], "key_points": [[row["words"]]], "constraints": [{"contains": row["words"][0]}]}
        for row in translated
    ]
    _write(home / "terms.jsonl", [{**row, **more} for row, more in zip(translated, points, strict=True)])


def _compared(at: int) -> dict[str, Any]:
    """Three views with what holds of each pair, and a solution that is right in one of three."""
    views, said = VIEWS[at % 3], ("same, different, different", "different, same, different")
    gold = ("same, different, different", "different, same, different", "different, same, different")[at % 3]
    solution = (f"#### {said[0]}", f"#### {said[1]}", said[1])[at // 3 % 3]
    return {"question": f"views {at}: {' | '.join(views)}\n", "answer": gold, "solution": solution}


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
