"""Every metric has one writer: read from the stages' own code, and in the names that the run as a whole shows."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.tasks.stages.registry import STAGES
from gradus.tasks.tracking.metric_table import (
    EVERY_STAGE,
    MAX_ON_RUN,
    METRICS,
    REPORTER,
    SECTIONS,
    find,
    page,
    section_of,
)
from gradus.tasks.tracking.names import flat_params, has_room, reserved, run_metric_name

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
    runs = {name: ROOT.joinpath(*stage.run.partition(":")[0].split(".")[1:]) for name, stage in STAGES.items()}
    for stage in STAGES:
        stages, training = ROOT / "tasks" / "stages", ROOT / "models" / "training"
        parts = [path for name in TRAINING.get(stage, ()) for path in training.glob(f"{name}.py")]
        others = {file.with_suffix(".py") for name, file in runs.items() if name != stage}
        for path in {*stages.glob(f"{stage}/*.py"), runs[stage].with_suffix(".py"), *parts} - others:
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
        ("score", "train", "reward/mean", "2 reward/mean"),
        ("score", "hint2", "reward/mean", "2 reward/mean.hint2"),
        ("score", "eval", "reward/mean", "2 reward/mean.eval"),
        ("score", "eval-aime", "reward/mean", "2 reward/mean.eval-aime"),
        ("score", "train", "reward/my/own.py:fn", "2 reward/my.own.py_fn"),
        ("evaluate", "eval", "eval/heldout/gain", "1 eval/gain"),
        ("evaluate", "eval-aime", "eval/aime/gain", "1 eval/gain.aime"),
        ("evaluate", "train", "eval/heldout/gain", "1 eval/gain"),
        ("rollout", "train", "perf/tokens_per_s", "8 time/tokens_per_s.rollout"),
        ("update", "train", "perf/tokens_per_s", "8 time/tokens_per_s.update"),
        ("rollout", "eval-aime", "perf/compute_s", "8 time/compute_s.rollout.eval-aime"),
        ("update", "train", "critic/loss", "3 policy/critic_loss"),
        ("score", "train", "mine", "own/mine"),
    ],
)
def test_a_metric_s_name_on_the_run_says_section_purpose_suite_and_for_times_the_stage(
    stage: str, purpose: str, name: str, shown: str
) -> None:
    assert run_metric_name(stage, purpose, name) == shown


def test_each_metric_that_a_stage_spells_out_is_in_the_table_with_that_stage_as_its_writer() -> None:
    for name, stages in writers().items():
        spelled = re.compile(re.escape(name).replace(r"\*", ".+"))
        entries = [metric for metric in METRICS if spelled.fullmatch(metric.name)] or [find(name)]
        assert [each for each in entries if each is None or not stages <= set(each.writer.split(", "))] == [], name


def test_the_table_names_each_metric_once_and_each_writer_is_a_stage() -> None:
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))
    assert {stage for m in METRICS for stage in m.writer.split(", ")} <= {*STAGES, EVERY_STAGE, REPORTER}
    # In the order of the sections, and nothing in the section of those that have none.
    sections = [section_of(name)[0] for name in names]
    assert sections == sorted(sections)
    assert set(sections) == {section.title for section in SECTIONS}
    assert [section.title[0] for section in SECTIONS] == list("123456789")


def test_the_page_is_what_the_table_says() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == page()


@settings(max_examples=200)
@given(name=st.text(max_size=60), purpose=st.text(max_size=20), stage=st.sampled_from(list(STAGES)))
def test_any_name_has_one_section_and_characters_that_mlflow_takes(name: str, purpose: str, stage: str) -> None:
    shown = run_metric_name(stage, purpose, name)
    assert shown.count("/") == 1
    section, own = shown.split("/")
    assert section in {"own", *(each.title for each in SECTIONS)}
    assert own
    assert re.fullmatch(r"[A-Za-z0-9_\-. /]+", shown)


@settings(max_examples=50)
@given(
    names=st.lists(st.sampled_from([m.name for m in METRICS]) | st.text("abc/", min_size=1, max_size=9), max_size=150)
)
def test_no_run_shows_more_than_sixty(names: list[str]) -> None:
    others: list[str] = []
    shown = {name for name in names if has_room(name, others)} | reserved()
    assert len(shown) <= MAX_ON_RUN
    assert 40 <= len(reserved()) <= 50


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.just("name"), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=200)
@given(config=st.dictionaries(st.text(max_size=300), JSON, max_size=4))
def test_mlflow_takes_every_parameter_of_any_settings(config: dict[str, Any]) -> None:
    from mlflow.utils.validation import _validate_param

    for key, value in flat_params(config).items():
        _validate_param(key, value)


BANNED = {"log_table", "log_image"}
"""One appends, the other names at random: after a kill the reporter would log twice."""


@pytest.mark.slow
def test_nothing_of_ours_calls_what_mlflow_keeps_twice() -> None:
    modules = [path for part in ("tasks", "flows", "models", "data") for path in (ROOT / part).rglob("*.py")]
    called = {
        (path.name, node.attr)
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in BANNED
    }
    assert called == set()
