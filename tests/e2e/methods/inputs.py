"""Files that some methods need beside the problems of the recipe."""

import json
import re
from itertools import islice
from pathlib import Path

import torch

from gradus.models.policy import load_policy
from tests.scorers import scorer_folder

CALLS = """def calls(rows):
    found = [(row.get("sample") or 0, len(row["completion"])) for row in rows]
    return [
        {"value": 0.0, "marks": [{"name": "call", "start": at, "end": at + 1}] if at < min(6, size) else []}
        for at, size in found
    ]
"""
"""A reward that marks as `call` the character of the number of a rollout, of the first six of a group."""
TARGETS = (None, {"max": 12}, {"min": 14, "max": 14}, {"min": 30}, {"min": 10, "max": 16}, {"max": 60})
"""Lengths that problems ask for, one after the other."""
BUNDLED = Path(__file__).parents[3] / "data" / "samples" / "policy"


def write_inputs(home: Path) -> None:
    """Write beside `train.jsonl` and `heldout.jsonl` a teacher, a reward, and problems with what some methods read."""
    problems = [json.loads(line) for line in (home / "train.jsonl").read_text().splitlines()]
    heldout = [json.loads(line) for line in (home / "heldout.jsonl").read_text().splitlines()]
    pointed = [{**row, "knowledge": ["carry the ten", "go from left to right"]} for row in problems]
    files = {
        "kinds": [
            {**row, "kind": "open", "answer": None} if at % 2 else {**row, "kind": "closed"}
            for at, row in enumerate(problems)
        ],
        "leaked": [*problems[::2], *islice(heldout, 4)],
        "closed": [{**row, "kind": "closed"} for row in heldout],
        "knowledge": pointed,
        "targets": [{**row, "length_target": TARGETS[at % len(TARGETS)]} for at, row in enumerate(problems)],
        "sub_answers": [
            {**row, "sub_answers": [*re.findall(r"=(-?\d+)", row["solution"]), *["none"][: at % 2]]}
            for at, row in enumerate(problems)
        ],
    }
    for name, rows in files.items():
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "calls.py").write_text(CALLS)
    scorer_folder(home / "scorer", positions=1024)
    teacher, generator = load_policy(BUNDLED), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in teacher.model.parameters():
            weight.add_(0.02 * weight.std() * torch.randn(weight.shape, generator=generator))
    teacher.model.save_pretrained(home / "teacher")
    teacher.tokenizer.save_pretrained(home / "teacher")
