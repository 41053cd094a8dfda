"""A user's reward in the identity of its scores: every module of the user's, wherever they lie, and its libraries."""

import importlib.metadata
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.identity import pins
from gradus.tasks.identity.pins import distributions_of, library_versions, pinned
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.score.rewards import spec_of
from gradus.tasks.stages.score.stage import JudgePools, run


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def folder_of(tmp_path, mine, **helpers):
    folder = tmp_path / "rewards"
    folder.mkdir(exist_ok=True)
    for name, text in {"mine": mine, **helpers}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def config_of(folder):
    return pinned(ScoreConfig(rewards=(RewardConfig(name=f"{folder}/mine.py:f"),)))


def score(tmp_path, config):
    store = Store(tmp_path / "lake")
    rows = [{"rollout_id": "a:0", "problem_id": "a", "completion": "x"}]
    rollouts = store.put("rollouts", pa.Table.from_pylist(rows))
    out = store.writer(Ref("scores", "0123456789abcdef"))
    warm = Warm()
    try:
        run(StageContext(store, {"rollouts": (rollouts,)}, out, 0, warm, lambda frac, text="": None), config)
    finally:
        for pool in warm.of(JudgePools).values():
            pool.close()
    return [r["reward"] for r in out.table("part-00000").to_pylist()]


HELPED = "import helper\ndef f(rows): return [helper.V] * len(rows)"
LATE = "def f(rows): return [__import__('la' + 'te').V] * len(rows)"


def test_a_helper_counts_and_its_neighbours_and_its_folder_do_not(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, HELPED, helper="V = 1.0")
    first = config_of(folder)
    (folder / "unrelated.py").write_text("V = 1.0")
    assert config_of(folder) == first
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "deeper")
    assert config_of(moved) != first
    assert config_of(moved).identified() == first.identified()
    (folder / "helper.py").write_text("V = 0.0")
    assert pinned(first) == first, "a run keeps to the reward it began with"
    changed = config_of(folder).rewards[0]
    assert changed.source_sha256 == first.rewards[0].source_sha256
    assert changed.modules["helper"] != first.rewards[0].modules["helper"]
    assert config_of(folder).identified() != first.identified()


def test_rewards_that_need_no_digests_are_written_as_before() -> None:
    config = pinned(ScoreConfig(rewards=(RewardConfig(name="math"),)))
    (written,) = config.model_dump(mode="json")["rewards"]
    assert set(written) == {"name", "weight"}


def test_a_module_of_a_computed_name_fails_until_it_is_declared_and_then_counts(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, LATE, late="V = 0.25")
    for _ in range(2):
        with pytest.raises(BadInputError, match=r'mine\.py loaded late\.py by a name.*write modules = \["late"\]'):
            score(tmp_path, config_of(folder))
    assert not list((tmp_path / "lake").glob("scores/*/part-*.parquet")), "nothing judged so may be kept"
    second = config_of(folder_of(tmp_path, f'modules = ["late"]\n{LATE}'))
    assert set(second.rewards[0].modules) == {"late"}
    assert score(tmp_path, second) == [0.25]
    (folder / "late.py").write_text("V = 0.75")
    assert config_of(folder).identified() != second.identified()
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert config_of(moved).identified() == config_of(folder).identified()


def test_a_helper_changed_after_it_was_pinned_fails_the_stage(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, HELPED, helper="V = 1.0")
    config = config_of(folder)
    (folder / "helper.py").write_text("V = 0.0")
    with pytest.raises(BadInputError, match=r"helper\.py was changed while the command ran"):
        score(tmp_path, config)
    assert not list((tmp_path / "lake").glob("scores/*/part-*.parquet"))
    assert score(tmp_path, config_of(folder)) == [0.0]


def test_the_column_verifier_changes_with_a_helper(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, HELPED, helper="V = 1.0")
    before = spec_of(config_of(folder).rewards[0]).verifier
    (folder / "helper.py").write_text("V = 0.0")
    assert before.startswith("mine.py:f@")
    assert spec_of(config_of(folder).rewards[0]).verifier != before


def test_libraries_that_a_reward_imports_count_with_what_they_require(tmp_path: Path, monkeypatch) -> None:
    folder = folder_of(tmp_path, "import math_verify\ndef f(rows): return [1.0] * len(rows)")
    found = config_of(folder)
    assert set(found.rewards[0].libraries) == {
        "math-verify",
        "latex2sympy2-extended",
        "sympy",
        "mpmath",
        "antlr4-python3-runtime",
    }
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1" if name == "mpmath" else real(name))
    monkeypatch.setattr(pins, "installed", pins.installed.__wrapped__)  # another process, which reads anew
    assert config_of(folder).identified() != found.identified()


def test_import_names_lead_to_distributions() -> None:
    assert distributions_of(["yaml", "numpy", "data", "of_nobody"]) == ["numpy", "pyyaml"]
    assert library_versions(["Not-Installed"]) == {}
