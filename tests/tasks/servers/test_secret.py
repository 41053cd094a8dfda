"""The secret of a home: made once, for its owner alone, and refused if others may know it."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradus.data.errors import StageError
from gradus.tasks.host.home_folder import secret, secret_path


def test_a_secret_is_made_once_whoever_asks_first_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ThreadPoolExecutor(16) as threads:
        found = set(threads.map(lambda _: secret(home), range(64)))
    assert len(found) == 1
    assert len(found.pop()) >= 40
    assert stat.S_IMODE(secret_path(home).stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == [secret_path(home).name]
    assert secret(tmp_path / "other") != secret(home)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o602])
def test_a_secret_that_others_may_know_is_refused(tmp_path: Path, mode: int) -> None:
    key = secret(tmp_path)
    secret_path(tmp_path).chmod(mode)
    with pytest.raises(StageError, match="delete it") as caught:
        secret(tmp_path)
    assert key not in str(caught.value)


def test_a_secret_that_is_a_link_or_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch(mode=0o600)
    secret_path(tmp_path).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StageError, match="cannot be read"):
        secret(tmp_path)
    secret_path(tmp_path).unlink()
    secret_path(tmp_path).touch(mode=0o600)
    with pytest.raises(StageError, match="is empty"):
        secret(tmp_path)
