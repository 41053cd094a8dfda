"""What a stage's identity holds of code: components by version and digest, and libraries."""

import ast
import importlib.metadata
import json
import shutil
from pathlib import Path

import pytest

from gradus.components import KINDS, Kind
from gradus.components import digest as digests
from gradus.components.description import described
from gradus.components.registry import ROOT, components
from gradus.components.settings import Config
from gradus.tasks.config.curation import CurateConfig, DifficultyConfig, HintConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.identity import pins
from gradus.tasks.identity.pins import code_identity

RECORD = Path(__file__).parents[2] / "golden" / "component_digests.json"
WRITE = "python -m tests.tasks.identity.test_versions"


def now() -> dict[str, list[object]]:
    ours = [(f"{kind}/{name}", each) for kind in KINDS for name, each in components(kind).items()]
    return {label: [each.version, digests.code_digest(each)] for label, each in ours if not each.distribution}


@pytest.mark.slow
def test_a_component_that_changed_has_another_version() -> None:
    found, record = now(), json.loads(RECORD.read_text())
    same = [label for label, (version, _) in record.items() if found.get(label, [0])[0] == version]
    changed = [label for label in same if found[label] != record[label]]
    assert not changed, (
        f"{', '.join(changed)}: the source changed and `version` did not. Raise it in @component if results change for "
        f"the same inputs; then run {WRITE}"
    )
    # A new one need not be recorded: a method is its function, its test and its overlay, and edits no other file.
    kept = {label: found.get(label) for label in record}
    assert kept == record, f"components went or have another version: run {WRITE}"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "models" / "objectives", tmp_path / "models" / "objectives")
    return tmp_path


def digest(copy: Path, kind: Kind, name: str) -> str:
    digests.code_digest.cache_clear()
    digests.definitions.cache_clear()
    (found,) = (c for file in copy.rglob("*.py") for c in described(file) if (c.kind, c.name) == (kind, name))
    return digests.code_digest(found, copy)


def edit(copy: Path, old: str, new: str) -> None:
    (file,) = (file for file in copy.rglob("*.py") if old in file.read_text())
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.slow
def test_a_formula_moves_its_own_digest_alone(copy: Path) -> None:
    before = digest(copy, "advantage", "grpo"), digest(copy, "advantage", "rloo")
    assert before[0] == now()["advantage/grpo"][1]
    edit(copy, ".nan_to_num(0.0) / (std + std_eps)", ".nan_to_num(0.0) / (std - std_eps)")
    assert digest(copy, "advantage", "grpo") != before[0]
    assert digest(copy, "advantage", "rloo") == before[1]


def test_a_helper_of_another_module_moves_those_that_use_it(copy: Path) -> None:
    before = digest(copy, "loss", "clip"), digest(copy, "loss", "sft")
    edit(copy, "MAX_LOG_RATIO = 10.0", "MAX_LOG_RATIO = 11.0")
    assert digest(copy, "loss", "clip") != before[0]
    assert digest(copy, "loss", "sft") == before[1]


def test_comments_and_docstrings_move_nothing(copy: Path) -> None:
    before = digest(copy, "advantage", "disco"), digest(copy, "loss", "distil")
    for path in copy.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and ast.get_docstring(node):
                node.body[0] = ast.Expr(ast.Constant("Other words."))
        path.write_text("# another comment\n" + ast.unparse(tree))
    assert (digest(copy, "advantage", "disco"), digest(copy, "loss", "distil")) == before


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            CurateConfig.model_validate({"filters": ["pass_rate"], "rank": "variance", "sampler": "uniform"}),
            {"filter/pass_rate", "ranking/variance", "sampler/uniform"},
        ),
        (HintConfig(), {"hint/prefix"}),
        (RolloutConfig(), {"engine/transformers"}),
        (ScoreConfig.model_validate({"rewards": ["numeric", "format"]}), {"reward/numeric", "reward/format"}),
        (DifficultyConfig(), set[str]()),
        (
            UpdateConfig.model_validate({"correction": "token_masked"}),
            {
                "advantage/grpo",
                "loss/clip",
                "aggregation/token_mean",
                "correction/token_masked",
                "optimizer/adamw",
            },
        ),
    ],
)
def test_the_components_of_a_stage_are_in_its_identity(config: Config, expected: set[str]) -> None:
    assert set(code_identity(config)) == {"shared/store", *expected}


@pytest.mark.parametrize(
    "library", ["math-verify", "sympy", "latex2sympy2-extended", "antlr4-python3-runtime", "mpmath"]
)
def test_every_library_that_decides_a_verdict_is_in_the_identity(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    math, numeric = (ScoreConfig(rewards=(RewardConfig(name=name),)) for name in ("math", "numeric"))
    before = code_identity(math), code_identity(numeric)
    real = importlib.metadata.version

    def version(name: str) -> str:
        return "0.0.1" if name == library else real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(pins, "installed", pins.installed.__wrapped__)  # another process, which reads anew
    assert code_identity(math) == before[0] | {f"library/{library}": "0.0.1"}
    assert code_identity(math) != before[0]
    assert code_identity(numeric) == before[1]


if __name__ == "__main__":
    RECORD.write_text(json.dumps(now(), indent=0, sort_keys=True) + "\n")
