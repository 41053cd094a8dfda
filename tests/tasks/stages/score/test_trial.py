"""A user's reward tried on two rows: what it returns is known before anything is sampled."""

import importlib.metadata
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.models.sandbox import launchers
from gradus.tasks.config.score import RewardConfig
from gradus.tasks.stages.score import trial
from gradus.tasks.stages.score.trial import try_rewards
from tests.sandboxes import needs_sandbox

REWARDS = """
import time

def strings(rows): return ["yes" for _ in rows]
def few(rows): return [1.0]
def misspelt(rows): return [float(row["anser"]) for row in rows]
def unable(rows): return [None for _ in rows]
def right(rows):
    assert [row["completion"] for row in rows] == ["1 + 1 = 2", "4"] and [row["answer"] for row in rows] == ["2", "4"]
    return [{"value": 1.0, "correct": True} for _ in rows]
def slow(rows): time.sleep(60)
"""


@pytest.fixture
def problems(tmp_path: Path) -> tuple[Store, Ref]:
    store = Store(tmp_path / "lake")
    rows = {
        "problem_id": ["a", "b", "c"],
        "question": ["1 + 1 =", "2 + 2 =", "3 + 3 ="],
        "answer": ["2", "4", "6"],
        "solution": ["1 + 1 = 2", None, None],
    }
    (tmp_path / "mine.py").write_text(REWARDS)
    return store, store.put("problems", pa.table(rows))


def test_a_reward_that_can_judge_no_row_is_refused_and_others_are_not(
    problems: tuple[Store, Ref], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(trial, "_LIMIT_S", 1.0)
    store, ref = problems

    def tried(*names: str) -> None:
        try_rewards(store, [RewardConfig(name=f"{tmp_path}/mine.py:{name}") for name in names], ref, tmp_path)

    for name, said in (
        ("strings", "the function returned str, not a number; return for each row a number"),
        ("few", "the function returned 1 values for 2 rows"),
        ("misspelt", "KeyError: 'anser'"),
    ):
        with pytest.raises(BadInputError) as error:
            tried(name)
        assert f"the reward mine.py:{name} judged none of the 2 rows that it was tried on: {said}" in str(error.value)
    tried("unable", "right", "slow")


def test_problems_with_other_golds_alone_have_golds(tmp_path: Path) -> None:
    store, rewards = Store(tmp_path / "lake"), [RewardConfig(name="exact")]
    for extra, refused in (('{"golds": ["7"]}', False), ('{"golds": []}', True), (None, True)):
        table = pa.table({"problem_id": ["a"], "question": ["?"], "answer": pa.nulls(1, pa.string()), "extra": [extra]})
        ref = store.put("problems", table)
        if refused:
            with pytest.raises(BadInputError, match="the reward exact needs gold answers"):
                try_rewards(store, rewards, ref, tmp_path)
        else:
            try_rewards(store, rewards, ref, tmp_path)


@needs_sandbox
def test_a_training_on_programs_needs_a_sandbox(
    problems: tuple[Store, Ref], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ref = problems
    rewards = [RewardConfig(name="program")]
    try_rewards(store, rewards, ref, tmp_path)
    monkeypatch.setattr(launchers, "BACKENDS", (launchers.Bubblewrap,))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInputError, match="the reward program needs a sandbox: bubblewrap: bwrap is not installed"):
        try_rewards(store, rewards, ref, tmp_path)
    with pytest.raises(BadInputError, match="the reward reasoning_gym needs a sandbox"):
        try_rewards(store, [RewardConfig(name="reasoning_gym")], ref, tmp_path)
    isolated = RewardConfig(name=f"{tmp_path}/mine.py:right", isolated=True)
    with pytest.raises(BadInputError, match=r"the reward mine\.py:right needs a sandbox: bubblewrap: bwrap"):
        try_rewards(store, [isolated], ref, tmp_path)


def test_a_reward_whose_library_is_missing_is_named_before_a_token_is_sampled(
    problems: tuple[Store, Ref], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.metadata.version

    def version(name: str) -> str:
        if name == "reasoning-gym":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(BadInputError, match="the reward reasoning_gym needs reasoning-gym, which is not installed"):
        try_rewards(problems[0], [RewardConfig(name="reasoning_gym")], problems[1], tmp_path)
