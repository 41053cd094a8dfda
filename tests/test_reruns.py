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
    for folder in (*RUN_TWICE, "data"):
        (tmp_path / "tests" / folder).mkdir(exist_ok=True)
        (tmp_path / "tests" / folder / f"test_flaky_{folder}.py").write_text(FLAKY)
    (tmp_path / "tests" / "e2e" / "test_failing.py").write_text(FAILING)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False)
    said = done.stdout
    assert done.returncode == 1
    assert re.search(r"^2 failed, 2 passed, 3 rerun", said, re.MULTILINE), said
    files = ("e2e/test_failing.py", *(f"{folder}/test_flaky_{folder}.py" for folder in RUN_TWICE))
    assert sorted(re.findall(r"^RERUN (\S+)", said, re.MULTILINE)) == [f"tests/{file}::test_it" for file in files]
    first = said.index("failed in call: tests/e2e/test_failing.py::test_it")  # when it happens, not at the end
    assert first < said.index("= FAILURES =")
    for folder in RUN_TWICE:  # what failed the first time is shown
        assert re.search(rf"RERUN tests/{folder}/test_flaky_{folder}.py::test_it(?:\n.*)+?the first time", said)
