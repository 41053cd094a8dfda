"""A test of processes and servers that fails is run once more and named; a unit test is not."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import FIRST, HERE, ONE_PROCESS, RUN_TWICE

FLAKY = "RUNS = []\n\n\ndef test_it():\n    RUNS.append(1)\n    assert len(RUNS) == 2, 'the first time'\n"
FAILING = "def test_it():\n    raise AssertionError('every time')\n"


def test_a_failure_is_repeated_and_named_in_the_folders_of_processes_alone(tmp_path: Path) -> None:
    for file in (*ONE_PROCESS, *FIRST):
        (tmp_path / "tests" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / file).touch()
    shutil.copy(HERE / "conftest.py", tmp_path / "tests")
    shutil.copy(HERE.parent / "pyproject.toml", tmp_path)
    flaky = {folder: f"{folder}/test_flaky_{folder.replace('/', '_')}.py" for folder in (*RUN_TWICE, "data")}
    for file in flaky.values():
        (tmp_path / "tests" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / file).write_text(FLAKY)
    del flaky["data"]
    (tmp_path / "tests" / "e2e" / "test_failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False)
    said = done.stdout
    assert done.returncode == 1
    summary = rf"^2 failed, {len(flaky)} passed, {len(flaky) + 1} rerun"
    assert re.search(summary, said, re.MULTILINE), said
    wanted = sorted(f"tests/{file}::test_it" for file in ("e2e/test_failing.py", *flaky.values()))
    assert sorted(re.findall(r"^RERUN (\S+)", said, re.MULTILINE)) == wanted
    first = said.index("failed in call: tests/e2e/test_failing.py::test_it")  # when it happens, not at the end
    assert first < said.index("= FAILURES =")
    for file in flaky.values():  # what failed the first time is shown
        assert re.search(rf"RERUN tests/{file}::test_it(?:\n.*)+?the first time", said)
