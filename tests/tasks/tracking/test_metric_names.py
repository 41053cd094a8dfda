"""Every metric has one writer: read from the stages' own code, and in the names that the run as a whole shows."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradus.tasks.stages.registry import STAGES
from gradus.tasks.tracking.names import run_metric_name

ROOT = Path(__file__).parents[3]
FAMILIES = "reward|length|data|verifier|policy|critic|mismatch|trained|sft|eval"
NAME = re.compile(rf"({FAMILIES})/[a-z0-9_*]+")


def names_in(path: Path) -> Iterator[str]:
    """Metric names that a module spells out; what an f-string fills in is a star."""
    for node in ast.walk(ast.parse(path.read_text())):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if NAME.fullmatch(text):
            yield text


TRAINING = {"update": ("update", "steps/*", "mismatch"), "warmstart": ("warmstart",)}
"""Modules of models/training that name metrics, by stage."""


def writers() -> dict[str, set[str]]:
    """Metric name -> the stages whose modules (below tasks/stages and models/training) spell it out."""
    found: dict[str, set[str]] = defaultdict(set)
    for stage in STAGES:
        stages, training = ROOT / "tasks" / "stages", ROOT / "models" / "training"
        parts = [path for name in TRAINING.get(stage, ()) for path in training.glob(f"{name}.py")]
        for path in (*stages.glob(f"{stage}.py"), *stages.glob(f"{stage}/*.py"), *parts):
            for name in names_in(path):
                found[name].add(stage)
    return found


def test_no_metric_is_spelled_out_by_two_stages() -> None:
    found = writers()
    known = {"reward/mean", "reward/*", "length/mean", "data/hint_level_mean", "data/pass_rate_mean"}
    known |= {"policy/loss", "critic/loss"}
    assert known <= set(found)
    assert {name: stages for name, stages in found.items() if len(stages) > 1} == {}


@pytest.mark.parametrize(
    ("stage", "purpose", "name", "shown"),
    [
        ("score", "train", "reward/mean", "reward/mean"),
        ("score", "hint2", "reward/mean", "hint2/reward/mean"),
        ("score", "eval", "reward/mean", "eval/reward/mean"),
        ("score", "eval-aime", "reward/mean", "eval/aime/reward/mean"),
        ("evaluate", "eval", "eval/heldout/gain", "eval/heldout/gain"),
        ("evaluate", "eval-aime", "eval/aime/gain", "eval/aime/gain"),
        ("rollout", "train", "perf/tokens_per_s", "perf/rollout/tokens_per_s"),
        ("update", "train", "perf/tokens_per_s", "perf/update/tokens_per_s"),
        ("rollout", "eval-aime", "perf/compute_s", "eval/aime/perf/rollout/compute_s"),
        ("evaluate", "", "eval/heldout/gain", "eval/heldout/gain"),
    ],
)
def test_a_metric_s_name_on_the_run_says_purpose_suite_and_for_times_the_stage(
    stage: str, purpose: str, name: str, shown: str
) -> None:
    assert run_metric_name(stage, purpose, name) == shown
