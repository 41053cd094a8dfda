"""A recipe from somebody else: a dry run runs nothing that it names, and it learns no variable of the environment."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref, Store
from gradus.flows.cli import main as cli
from gradus.flows.loop.inputs import as_run
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.reading import parse_recipe
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.identity.pins import pinned
from gradus.tasks.runtime.calls import Job, execute
from gradus.tasks.stages.score.stage import JudgePools

CANARY = """
import os, pathlib
import helper
pathlib.Path(__file__).with_name("canary").write_text("run")

def judge(rows: list[dict], *, bonus: float = 0.5) -> list:
    return [1.0] * len(rows)

def short(candidates, *, max_words: int = 9):
    raise SystemExit

def first_words(solution: str, *, words: int = 3) -> str:
    return solution
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe whose reward, filter and hints are in a file that leaves a trace when it is run."""
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "test"):
        rows = [{"question": f"{name} {i} + 1 =", "answer": str(i + 1), "solution": "so"} for i in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "code.py").write_text(CANARY)
    (tmp_path / "helper.py").write_text("import pathlib\npathlib.Path(__file__).with_name('canary').write_text('run')")
    (tmp_path / "mine.toml").write_text(
        """
        name = "foreign"
        rounds = 1
        problems = "mine.jsonl"
        escalate = [1]
        curate = { filters = ["code.py:short"], sample = { n = 4 } }
        hint = { strategy = "code.py:first_words" }
        score = { rewards = [{ name = "numeric" }, { name = "code.py:judge" }] }
        update = { warmup_steps = 0 }
        evaluate = { problems = "test.jsonl", sample = { n = 2 }, report = { ks = [1] } }
        """
    )
    return tmp_path


def dry_run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    try:
        cli.main(["train", "mine.toml", "--dry-run", *words])
        code: object = 0
    except SystemExit as end:
        code = end.code
    return code or 0, *capsys.readouterr()


def test_a_dry_run_reads_the_files_of_a_recipe_and_runs_none(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = dry_run(capsys, "--json")
    assert code == 0, err
    assert not (place / "canary").exists()
    found = json.loads(out)
    assert {"curate", "hint", "rollout", "score"} <= {call["stage"] for call in found["calls"]}
    (remark,) = found["remarks"]
    assert remark.startswith("code.py:short, code.py:first_words, code.py:judge: read, not run; ")
    assert not (place / "home" / "lake").exists()


@pytest.mark.parametrize(
    ("setting", "source", "sentence"),
    [
        ("score.rewards.1.name=code.py:juge", CANARY, "has no function 'juge'; did you mean judge?"),
        ("score.rewards.1.bonus=much", CANARY, "score.rewards.1.bonus"),
        ("score.rewards.1.bonsu=1", CANARY, "there is no setting score.rewards.1.bonsu"),
        ("name=foreign", CANARY + "\ndef broken(:\n", "code.py line 15 is not valid Python"),
        ("name=foreign", "", "there is no file"),
    ],
)
def test_what_is_wrong_with_a_file_is_read_from_its_source(
    place: Path, capsys: pytest.CaptureFixture[str], setting: str, source: str, sentence: str
) -> None:
    if source:
        (place / "code.py").write_text(source)
    else:
        (place / "code.py").unlink()
    code, out, err = dry_run(capsys, "--set", setting)
    assert (code in (1, 2), out) == (True, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not (place / "canary").exists()


def recipe_with(**body: object) -> Recipe:
    return parse_recipe({"name": "foreign", "rounds": 1, **body}, "foreign.toml")


def test_a_recipe_sends_no_variable_that_is_not_a_key_or_listed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {
        "engine": "openai",
        "server": {"url": "https://evil.example/v1", "api_key_variable": "AWS_SECRET_ACCESS_KEY"},
    }
    changed = [{"stage": "rollout", "round": 1, "changes": {"server.api_key_variable": "AWS_SECRET_ACCESS_KEY"}}]
    for recipe in (recipe_with(rollout=named), recipe_with(overrides=changed)):
        with pytest.raises(UsageError, match="the environment variable AWS_SECRET_ACCESS_KEY") as refused:
            check_recipe(recipe, place / "lake")
        assert "GRADUS_KEY_VARIABLES=AWS_SECRET_ACCESS_KEY" in refused.value.hint
    # Where a recipe was not looked at before: the stage itself, before it sends anything.
    job = Job("rollout", str(place / "lake"), f"rollouts/{'c' * 32}", {}, RolloutConfig(**named).model_dump(), seed=1)
    with pytest.raises(UsageError, match="AWS_SECRET_ACCESS_KEY"):
        execute(vars(job), Warm(), lambda frac, text="": None)
    monkeypatch.setenv("GRADUS_KEY_VARIABLES", "OTHER,AWS_SECRET_ACCESS_KEY")
    check_recipe(recipe_with(overrides=changed), place / "lake")


SPY = """
import json, os, sys
def judge(rows):
    if any(row["completion"] == "raise" for row in rows):
        raise ValueError("401: wrong key " + os.environ["JUDGE_API_KEY"])
    print("with", os.environ["JUDGE_API_KEY"], flush=True)
    names = sorted({"JUDGE_API_KEY", "OTHER_API_KEY"} & set(os.environ))
    said = f"{names} {os.environ['JUDGE_API_KEY']} {os.environ['JUDGE_API_KEY'][:5]} {sys.argv}"
    return [{"value": 1.0, "correct": True, "extracted": said}] * len(rows)
"""
KEY = "sk-judge/0123456789"


def test_a_reward_sees_the_variables_that_its_settings_name_and_no_file_has_their_values(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "code.py").write_text(SPY)
    logs = place / "home" / "logs"
    logs.mkdir(parents=True)
    for name, value in (("JUDGE_API_KEY", KEY), ("OTHER_API_KEY", "other"), ("GRADUS_RUN_LOGS", str(logs))):
        monkeypatch.setenv(name, value)
    reward = {"name": f"{place}/code.py:judge", "variables": ["JUDGE_API_KEY"]}
    config = pinned(ScoreConfig.model_validate({"rewards": [reward], "max_error_frac": 1.0}))
    assert json.dumps(config.identified()).count("JUDGE_API_KEY") == 1
    store = Store(place / "home" / "lake")
    rows = [{"rollout_id": f"a:{i}", "problem_id": "a", "completion": text} for i, text in enumerate(("x", "raise"))]
    inputs = {"rollouts": [str(store.put("rollouts", pa.Table.from_pylist(rows)))]}
    out = Ref("scores", "d" * 32)
    warm = Warm()
    try:
        execute(vars(Job("score", str(store.root), str(out), inputs, config.model_dump(), seed=0)), warm, _silent)
    finally:
        for pool in warm.of(JudgePools).values():
            pool.close()
    first, second = store.read(out).to_pylist()
    assert first["extracted"].startswith("['JUDGE_API_KEY'] *** sk-ju ['")
    assert first["extracted"].endswith("judge.py']"), "nothing in its arguments"
    assert second["error"] == "judge: ValueError: 401: wrong key ***"
    assert "with ***\n" in next(logs.glob("reward-*.log")).read_text()
    holders = [path for path in (place / "home").rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert holders == []


def _silent(frac: float, text: str = "") -> None:
    """Nobody watches."""


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        (["PATH"], "code.py:judge: variables names the environment variable PATH, which is not released"),
        (["UNSET_API_KEY"], "names the environment variable UNSET_API_KEY, which is not set"),
    ],
)
def test_a_variable_of_a_reward_is_refused_before_its_file_is_run(
    place: Path, variables: list[str], sentence: str
) -> None:
    reward = {"name": f"{place}/code.py:judge", "variables": variables}
    recipe = recipe_with(score={"rewards": ["numeric", reward]})
    for begin in (lambda: check_recipe(recipe, place / "lake"), lambda: as_run(recipe)):
        with pytest.raises(UsageError, match=sentence):
            begin()
    assert not (place / "canary").exists()
