"""Components of a user's that one process loads, as a worker does that outlives a stage: each with its own modules."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import TESTS_PATH

SCRIPT = """
import sys
import torch
from gradus.data.errors import BadInputError
from gradus.models.objectives.rows import Rows
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.identity.loading import load, refuse_unpinned
from gradus.tasks.identity.pins import pinned

for file in sys.argv[1:]:
    config = pinned(UpdateConfig.model_validate({"advantage": f"{file}:scaled"}))
    try:
        print(file, load(config.advantage)(Rows({"reward": torch.ones(1)})).item())
        refuse_unpinned(config)
    except BadInputError as error:
        print(file, error.message)
"""
SCALED = "import {helper}\ndef scaled(rows):\n    {late}\n    return {helper}.SCALE * rows['reward']\n"


def said(folder: Path, *files: str) -> list[str]:
    """Return what a process prints that loads and calls these components one after the other."""
    command, env = [sys.executable, "-c", SCRIPT, *files], {"PYTHONPATH": TESTS_PATH, "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout.splitlines()


def test_components_of_one_process_have_their_own_modules_and_no_others(tmp_path: Path) -> None:
    files = {
        "one.py": SCALED.format(helper="of_one", late="pass"),
        "of_one.py": "SCALE = 2.0",
        "two.py": SCALED.format(helper="of_two", late="pass"),
        "of_two.py": "SCALE = 3.0",
        "hidden.py": SCALED.format(helper="of_two", late="__import__('la' + 'te')"),
        "late.py": "",
        "other/three.py": SCALED.format(helper="of_one", late="pass"),
        "other/of_one.py": "SCALE = 5.0",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert said(tmp_path, "one.py", "two.py", "one.py") == ["one.py 2.0", "two.py 3.0", "one.py 2.0"]
    first, value, fault = said(tmp_path, "one.py", "other/three.py")
    assert (first, value) == ("one.py 2.0", "other/three.py 2.0")  # Python keeps the first module of a name
    assert fault.endswith("or two files import different modules named of_one")
    found = said(tmp_path, "one.py", "hidden.py")
    assert found[:2] == ["one.py 2.0", "hidden.py 3.0"]
    assert found[2].startswith("hidden.py hidden.py loaded late.py by a name or from a folder that it computes")
