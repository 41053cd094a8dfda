"""Folders that somebody else prepared: their settings, and a `.gradus` that came with them, run nothing."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gradus.data.errors import UsageError
from gradus.flows.cli import main as cli
from gradus.tasks.config.settings import Home
from gradus.tasks.host.home_folder import SECRETIVE, open_home
from tests.hostile import make_settings

ROOT = Path(__file__).parents[2]
SETTINGS = """
import json
from gradus.flows.environment import prepare
from gradus.tasks.config.settings import Home
prepare(Home.from_environment())
from prefect.context import get_settings_context
import prefect.main
known = get_settings_context()
found = known.settings
print(json.dumps({
    ".env": found.api.key is not None,
    "prefect.toml": found.flows.default_retries,
    "pyproject.toml": found.tasks.default_retries,
    "profiles.toml": [found.runner.process_limit, known.profile.name],
    "logging": str(found.logging.config_path),
}))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, in which `.gradus` is the home."""
    for name in [name for name in os.environ if name.startswith(("GRADUS_", "PREFECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_setting_comes_from_a_file_of_the_folder_or_of_the_home(place: Path) -> None:
    canary = place / "canary"
    (place / "home" / "prefect").mkdir(parents=True)
    for folder in (place, place / "home" / "prefect"):
        make_settings(folder, canary)
    env = {**os.environ, "GRADUS_HOME": str(place / "home"), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-P", "-c", SETTINGS], env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert Path(found.pop("logging")).parts[-3:] == ("prefect", "logging", "logging.yml")
    assert found == {".env": False, "prefect.toml": 0, "pyproject.toml": 0, "profiles.toml": [5, "ephemeral"]}
    assert not canary.exists()


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int | str | None, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(list(words))
    return end.value.code, capsys.readouterr().err


def test_a_home_that_came_with_other_files_is_used_once_somebody_names_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = place / ".gradus"
    assert told(capsys, "runs") == (0, "")
    assert told(capsys, "runs") == (0, "")
    shutil.copytree(home, place / "archive")  # with its times, modes and marks
    shutil.rmtree(home)
    shutil.move(place / "archive", home)
    code, err = told(capsys, "runs")
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"{home} was not made here" in err
    assert f"GRADUS_HOME={home} gradus runs" in err
    monkeypatch.setenv("GRADUS_HOME", str(home))
    assert told(capsys, "runs") == (0, "")
    monkeypatch.delenv("GRADUS_HOME")
    assert told(capsys, "runs") == (0, "")
    shutil.move(home, place / "moved")  # with its folder
    shutil.move(place / "moved", home)
    assert told(capsys, "runs") == (0, "")


def test_a_home_that_other_accounts_own_or_can_write_to_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.from_environment()
    home.root.mkdir(mode=0o755)
    open_home(home)  # an empty folder is as good as none
    home.root.chmod(0o770)
    with pytest.raises(UsageError, match="other accounts can write to"):
        open_home(home)
    home.root.chmod(0o700)
    open_home(home)
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(UsageError, match="belongs to another account"):
        open_home(home)


def test_an_existing_home_keeps_its_mode_and_closes_what_holds_secrets(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = place / "shared"
    (root / "prefect").mkdir(parents=True)
    (root / "lake").mkdir()
    monkeypatch.setenv("GRADUS_HOME", str(root))
    open_home(Home.from_environment())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (root, *root.iterdir()) if path.is_dir()}
    open_mode = stat.S_IMODE(place.stat().st_mode | 0o055)
    assert modes == {"shared": open_mode, "lake": open_mode, **dict.fromkeys(SECRETIVE, 0o700)}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can look with another account's eyes")
def test_another_account_reads_nothing_in_a_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for name, open_root in (("fresh", False), ("shared", True)):
            root = Path(folder) / name
            if open_root:
                root.mkdir()
            monkeypatch.setenv("GRADUS_HOME", str(root))
            open_home(Home.from_environment())
            for secret in SECRETIVE:
                (root / secret / "prefect.db").write_text("secret")  # with the modes of a careless library
            seen = subprocess.run(
                ["find", str(root), "-name", "prefect.db", "-readable"],
                user=65534,
                group=65534,
                extra_groups=[],
                capture_output=True,
                text=True,
                check=False,
            )
            assert seen.stdout == ""
            assert "Permission denied" in seen.stderr
