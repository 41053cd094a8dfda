"""No version of our own code is forgotten: each has a digest of what it covers, and neither moves alone."""

import ast
import importlib.metadata
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import gradus.components.chosen
import gradus.components.registry
from gradus.components.settings import Config
from gradus.tasks.config.curation import CurateConfig, DifficultyConfig, HintConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.identity.versions import code_identity
from gradus.tasks.stages.registry import STAGES
from tests.code_closure import PACKAGES, Tree, is_text
from tests.code_versions import ADVICE, ROOT, digests, read, renewed, versions, wrongs


@pytest.fixture(scope="module")
def now() -> dict[str, str]:
    return digests()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in (*PACKAGES, "src/gradus/components"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "samples"))
    return tmp_path


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / name
    text = path.read_text()
    assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {name}"
    path.write_text(text.replace(old, new))


def moved(root: Path, now: dict[str, str]) -> set[str]:
    changed = digests(root)
    return {label for label in changed if changed[label] != now[label]}


def test_every_version_has_the_code_that_was_recorded_with_it(now: dict[str, str]) -> None:
    found = wrongs(versions(), now, read())
    assert not found, "\n".join(f"{label} {wrong}" for label, wrong in found.items()) + ADVICE


def test_the_names_have_versions_and_the_versions_names(now: dict[str, str]) -> None:
    assert set(now) == set(versions())


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            CurateConfig.model_validate({"filters": ["pass_rate"], "rank": "variance", "sampler": "uniform"}),
            {"filter/pass_rate", "ranking/variance", "sampler/uniform"},
        ),
        (HintConfig(), {"hint strategy/prefix"}),
        (RolloutConfig(), {"engine/transformers"}),
        (ScoreConfig.model_validate({"rewards": ["numeric", "format"]}), {"reward/numeric", "reward/format"}),
        (DifficultyConfig(), set[str]()),
        (
            UpdateConfig.model_validate({"correction": "token_masked"}),
            {"advantage/grpo", "loss/clip", "aggregation/token_mean", "importance weights/token_masked"},
        ),
    ],
)
def test_the_components_of_a_stage_are_in_its_identity(config: Config, expected: set[str]) -> None:
    assert set(code_identity(config)) == {"shared/store", *expected}


def test_modules_imported_by_computed_names_are_known(now: dict[str, str]) -> None:
    tree = Tree(ROOT)
    for spec in STAGES.values():
        tree.closure(tree.key(spec.run.replace(":", ".")), {})
    # Components, which are roots of their own, and modules of vLLM, PyTorch and bitsandbytes, which are not ours.
    assert tree.dynamic == {
        ("gradus.components.registry", "function_of"),
        ("gradus.models.engines.vllm_core", "vllm"),
        ("gradus.models.judging.judge", "_function"),
        ("gradus.models.rewards", "load"),
        ("gradus.models.training.optimizers.making", "new_optimizer"),
    }


# --- what moves a digest, and what does not --------------------------------------------------------------------------


def test_an_inverted_advantage_moves_its_own_digest_alone(copy: Path, now: dict[str, str]) -> None:
    edit(
        copy,
        "models/objectives/advantages/group_relative.py",
        "centred / (std + std_eps)",
        "-centred / (std + std_eps)",
    )
    assert moved(copy, now) == {"advantage/grpo"}


def test_a_helper_moves_all_that_use_it(copy: Path, now: dict[str, str]) -> None:
    edit(
        copy,
        "models/objectives/advantages/__init__.py",
        "mean = group_sum(batch, reward)",
        "mean = -group_sum(batch, reward)",
    )
    assert moved(copy, now) == {"advantage/grpo", "advantage/dr_grpo", "advantage/rloo"}


def test_two_helpers_that_change_places_are_noticed(copy: Path, now: dict[str, str]) -> None:
    clipped = "models/objectives/losses/clipped.py"
    edit(copy, clipped, "import MAX_LOG_RATIO,", "import MAX_LOG_RATIO, MIN_LOG_RATIO,")
    edit(copy, clipped, "clamp(-MAX_LOG_RATIO,", "clamp(MIN_LOG_RATIO,")
    edit(
        copy,
        "models/objectives/losses/__init__.py",
        "MAX_LOG_RATIO = 10.0",
        "MAX_LOG_RATIO = 10.0\nMIN_LOG_RATIO = -10.0",
    )
    once = digests(copy)
    edit(copy, "models/objectives/losses/__init__.py", "MAX_LOG_RATIO = 10.0\nMIN_", "MAX_LOG_RATIO = -10.0\nMIN_")
    edit(copy, "models/objectives/losses/__init__.py", "MIN_LOG_RATIO = -10.0", "MIN_LOG_RATIO = 10.0")
    assert digests(copy)["loss/clip"] != once["loss/clip"] != now["loss/clip"]


def test_a_judge_that_is_only_named_in_a_text_counts_for_the_stage(copy: Path, now: dict[str, str]) -> None:
    edit(copy, "models/judging/judge.py", "GRACE_S = 2.0", "GRACE_S = 3.0")
    assert moved(copy, now) == {"stage/score"}


def test_another_function_of_a_library_is_noticed(copy: Path, now: dict[str, str]) -> None:
    edit(copy, "models/rewards/text.py", "\nimport re\n", "\nimport regex as re\n")
    changed = moved(copy, now)
    assert {"reward/math", "reward/numeric", "reward/exact", "reward/format"} <= changed
    assert not any(label.startswith(("advantage/", "stage/rollout")) for label in changed)


def test_comments_docstrings_and_layout_move_nothing(copy: Path, now: dict[str, str]) -> None:
    for package in PACKAGES:
        for path in (copy / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                for statement in getattr(node, "body", []) if isinstance(getattr(node, "body", []), list) else []:
                    if is_text(statement):
                        statement.value.value = "Other words."
            path.write_text("# another comment\n" + ast.unparse(tree))
    assert moved(copy, now) == set()


def test_a_renamed_and_moved_helper_moves_nothing(copy: Path, now: dict[str, str]) -> None:
    path = copy / "models/objectives/advantages/__init__.py"
    text = path.read_text()
    start = text.index("def _extremes")
    end = text.index("def group_sum")
    helper = (
        "import torch\nfrom torch import Tensor as T\nfrom gradus.models.objectives.batch import ScoredBatch\n\n\n"
        + text[start:end]
    )
    (copy / "models/extremes.py").write_text(
        helper.replace("_extremes", "high_and_low").replace("tuple[Tensor, Tensor]", "tuple[T, T]")
    )
    rest = (text[:start] + text[end:]).replace("_extremes(", "extremes.high_and_low(")
    path.write_text(rest.replace("import torch\n", "import torch\n\nfrom gradus.models import extremes\n", 1))
    assert "high_and_low" in path.read_text()
    assert moved(copy, now) == set()


def test_a_moved_module_moves_nothing(copy: Path, now: dict[str, str]) -> None:
    folder = copy / "data/hints"
    (folder / "leaks.py").rename(folder / "disclosure.py")
    for path in folder.glob("*.py"):
        path.write_text(path.read_text().replace("gradus.data.hints.leaks", "gradus.data.hints.disclosure"))
    assert moved(copy, now) == set()


def test_a_new_setting_moves_nothing(copy: Path, now: dict[str, str]) -> None:
    edit(copy, "tasks/config/learning.py", "    kl_coef: float = ", "    another: float = 1.0\n    kl_coef: float = ")
    assert moved(copy, now) == set()


# --- the record ------------------------------------------------------------------------------------------------------


def test_neither_moves_alone_and_a_reason_stays_until_the_next_version() -> None:
    record = renewed({"loss/x": 1}, {"loss/x": "aa"}, {}, "")
    assert record == {"loss/x": {"version": 1, "digest": "aa"}}
    with pytest.raises(ValueError, match="loss/x"):
        renewed({"loss/x": 1}, {"loss/x": "bb"}, record, "")
    with pytest.raises(ValueError, match="loss/x"):
        renewed({"loss/x": 2}, {"loss/x": "aa"}, record, "")
    same = renewed({"loss/x": 1}, {"loss/x": "bb"}, record, "a helper was inlined")
    assert same == {"loss/x": {"version": 1, "digest": "bb", "why": "a helper was inlined"}}
    assert renewed({"loss/x": 1}, {"loss/x": "bb"}, same, "") == same
    assert renewed({"loss/x": 2}, {"loss/x": "cc"}, same, "") == {"loss/x": {"version": 2, "digest": "cc"}}
    assert renewed({}, {}, same, "") == {}


@pytest.mark.parametrize(
    ("version", "digest", "said"),
    [
        (1, "aa", ""),
        (1, "bb", "changed and its version did not"),
        (2, "aa", "has another version and the same code"),
        (2, "bb", "has another version, not yet recorded"),
    ],
)
def test_the_test_says_what_is_wrong(version: int, digest: str, said: str) -> None:
    found = wrongs({"loss/x": version}, {"loss/x": digest}, {"loss/x": {"version": 1, "digest": "aa"}})
    assert found == ({"loss/x": said} if said else {})


# --- what is in an identity ------------------------------------------------------------------------------------------


def test_only_components_that_the_settings_name_are_in_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_identity(UpdateConfig()) == {
        "shared/store": "1",
        "advantage/grpo": "1",
        "loss/clip": "1",
        "aggregation/token_mean": "1",
    }
    assert code_identity(CurateConfig()) == {"shared/store": "1", "sampler/all": "1"}
    before = code_identity(UpdateConfig.model_validate({"advantage": "rloo"}))
    real = gradus.components.registry.find
    raised = {"grpo": 2}
    monkeypatch.setattr(
        gradus.components.chosen,
        "find",
        lambda kind, name: replace(real(kind, name), version=raised.get(name, 1)),
    )
    assert code_identity(UpdateConfig())["advantage/grpo"] == "2"
    assert code_identity(UpdateConfig.model_validate({"advantage": "rloo"})) == before


@pytest.mark.parametrize(
    "library", ["math-verify", "sympy", "latex2sympy2-extended", "antlr4-python3-runtime", "mpmath"]
)
def test_every_library_that_decides_a_verdict_is_in_the_identity(library: str, monkeypatch) -> None:
    math, numeric = (ScoreConfig(rewards=(RewardConfig(name=name),)) for name in ("math", "numeric"))
    before = code_identity(math), code_identity(numeric)
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.1" if name == library else real(name))
    assert code_identity(math) == before[0] | {f"library/{library}": "0.0.1"}
    assert code_identity(math) != before[0]
    assert code_identity(numeric) == before[1]
