"""The program in this process, given folders from somebody else."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradus.flows import stages
from gradus.flows.cli import main as cli
from gradus.flows.library import calling
from tests.faults.foreign.gifts import JARGON, Place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The program in this process, its flows as plain functions: everything is refused before a stage begins."""

    @contextlib.contextmanager
    def begin() -> Iterator[Callable[[], None]]:
        yield lambda: None

    monkeypatch.setattr(calling, "api", begin)
    made = stages.stage_flow
    monkeypatch.setattr(stages, "stage_flow", lambda verb: inspect.unwrap(made(verb).fn))
    monkeypatch.setattr("gradus.flows.session.reports_now", lambda: False)
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


@pytest.fixture
def refused(place: Place, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the program: it must end with one sentence, which is returned, and touch nothing."""

    def run(*words: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        out, err = capsys.readouterr()
        assert (end.value.code in (1, 2), out) == (True, "")
        assert err.startswith("gradus: ")
        assert len(err.splitlines()) == 1
        assert len(err) - 3 * len(str(place.root)) <= 500
        assert not JARGON.search(err), err
        assert "ended unexpectedly" not in err
        assert place.untouched()
        return err

    return run
