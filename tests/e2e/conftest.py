"""One undisturbed run of the tiny recipe through the real program, shared by the end-to-end tests."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = Path(__file__).parent / "tiny.toml"


class Program:
    """The `gradus` program with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def environment(self, **extra: str) -> dict[str, str]:
        """The program's environment; the tracker is tested by itself."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "GRADUS_", "MLFLOW_"))}
        return {**kept, "GRADUS_HOME": str(self.home), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra}

    def start(self, *arguments: str, **extra: str) -> "subprocess.Popen[bytes]":
        """Start the program; files, not pipes, since an orphaned server would hold a pipe open."""
        with (self.home / "stdout").open("wb") as out, (self.home / "stderr").open("wb") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "flows.cli", *arguments],
                env=self.environment(**extra),
                cwd=self.home,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
            )

    def run(self, *arguments: str, **extra: str) -> tuple[int, str, str]:
        """Run the program: exit code, stdout, stderr."""
        with self.start(*arguments, **extra) as process:
            code = process.wait(timeout=280)
        return code, (self.home / "stdout").read_text(), (self.home / "stderr").read_text()

    def json(self, *arguments: str) -> dict[str, Any]:
        """Run the program with --json; it must succeed."""
        code, out, err = self.run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def manifests(self) -> dict[str, bytes]:
        """Every manifest of the lake by artefact."""
        lake = self.home / "lake"
        return {str(p.parent.relative_to(lake)): p.read_bytes() for p in sorted(lake.glob("*/*/manifest.json"))}


@pytest.fixture(scope="session")
def new_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Program]:
    """Make programs with fresh homes that share Prefect's and MLflow's databases, whose creation is slow."""
    shared = {name: tmp_path_factory.mktemp(name) for name in ("prefect", "mlflow")}

    def make() -> Program:
        home = tmp_path_factory.mktemp("home")
        for name, folder in shared.items():
            (home / name).symlink_to(folder)
        return Program(home)

    code, _, err = make().run("setup")
    assert code == 0, err
    return make


@pytest.fixture(scope="session")
def undisturbed(new_program: Callable[[], Program]) -> tuple[Program, dict[str, Any]]:
    """The tiny recipe, run to its end by nobody disturbed."""
    program = new_program()
    return program, program.json("train", str(RECIPE))
