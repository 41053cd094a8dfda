"""The program as a user has it: from a wheel, in a folder of the user's whose modules are named like ours."""

import os
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import ROOT, Program
from tests.hostile import make_hostile

PARTS = ("flows", "tasks", "models", "data")
REWARD = """
import models.helpers
from data import WANTED


def judge(rows):
    return [models.helpers.last_word(row["completion"]) == row[WANTED] for row in rows]
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built from the source distribution, as a package index has them."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has Gradus from the wheel, and its dependencies from the environment of the tests."""
    venv = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    (packages,) = venv.glob("lib/python*/site-packages")
    # The path alone: the links of an editable installation there are not followed from here.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return venv


@pytest.fixture(scope="module")
def program(installed: Path, new_program: Callable[..., Program]) -> Program:
    """The installed program, run in a folder with packages and modules named like ours, Python's and libraries'."""
    found = new_program()
    found.command, found.module_path = [str(installed / "bin" / "gradus")], ""
    make_hostile(found.home)
    (found.home / "random.py").write_text("raise RuntimeError('random.py of the current folder was imported')\n")
    for name in PARTS:
        (found.home / name).mkdir()
        (found.home / name / "__init__.py").write_text("WANTED = 'answer'\n")
    (found.home / "models" / "helpers.py").write_text("def last_word(text):\n    return text.split()[-1]\n")
    (found.home / "mine.py").write_text(REWARD)
    return found


def test_a_wheel_holds_every_tracked_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    listed = ["git", "ls-files", *PARTS, "recipes", "mlflow", "constraints.txt", "src/gradus"]
    tracked = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {name.removeprefix("src/gradus/") for name in tracked if not (ROOT / name).is_symlink()}
    assert names == {f"gradus/{name}" for name in files}


def test_only_the_package_is_importable(installed: Path, tmp_path: Path) -> None:
    code = "import gradus, importlib.util as u, sys; print(gradus.__file__, *map(u.find_spec, sys.argv[1:]))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(installed / "bin" / "python"), "-c", code, *PARTS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    file, *others = done.stdout.split()
    assert Path(file).is_relative_to(installed)
    assert others == ["None"] * len(PARTS)


def test_the_demo_runs_and_is_judged_again_by_a_reward_of_the_users(program: Program) -> None:
    small = ("ingest.limit=48", "rollout.shard_rows=16", "profile.n=2", "curate.draw=8", "evaluate.sample.n=1")
    sets = [word for setting in (*small, "evaluate.report.ks=[1]") for word in ("--set", setting)]
    demo = program.json("demo", "--rounds", "1", "--run", "mine", *sets)
    assert demo["rounds"] == 1
    assert program.json("doctor")["checks"]
    assert "</html>" in Path(program.json("report", "mine")["files"][0]).read_text(encoding="utf-8")
    done = program.json("show", "mine")["attempts"]
    rollouts = next(each["output"] for each in done if (each["stage"], each["purpose"]) == ("rollout", "train"))
    program.json(
        *("score", "--rollouts", rollouts, "--problems", "bundled:train", "--reward", "mine.py:judge"),
        *("--out", "scores.parquet"),
    )
    judged = pq.read_table(program.home / "scores.parquet")
    assert judged.num_rows == pq.read_table(program.home / "lake" / rollouts).num_rows
    assert set(judged.column("outcome").to_pylist()) <= {"correct", "wrong"}
    assert {row["run"] for row in program.json("runs")["runs"]} >= {"mine"}
