"""What each shell is offered at the Tab key, by the protocol that its installed script speaks with the program."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Program

GRADUS = Path(sys.executable).with_name("gradus")
TYPED = [("rerun nightly upd", "update"), ("show nig", "nightly")]
"""Behind the program's name, and the one word that completes it."""


@pytest.fixture
def program(new_program: Callable[..., Program]) -> Program:
    """A program whose home has one run."""
    made = new_program(alone=True)
    (made.home / "runs" / "nightly").mkdir(parents=True)
    (made.home / "runs" / "nightly" / "run.json").write_text("{}")
    return made


def asked(program: Program, shell: str, typed: str) -> str:
    """The program's answer to a shell."""
    words = {"bash": {"COMP_WORDS": f"gradus {typed}", "COMP_CWORD": str(len(typed.split()))}}
    protocol = words.get(shell, {"_TYPER_COMPLETE_ARGS": f"gradus {typed}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"})
    environment = program.environment(**protocol, _GRADUS_COMPLETE=f"complete_{shell}")
    done = subprocess.run([GRADUS], env=environment, cwd=program.home, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(("typed", "word"), TYPED)
def test_a_word_is_completed(program: Program, shell: str, typed: str, word: str) -> None:
    lines = asked(program, shell, typed).strip().splitlines()
    assert len(lines) == 1
    assert word in lines[0].replace('"', " ").split()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_once_the_program_has_installed_it(program: Program, tmp_path: Path) -> None:
    path = f"{GRADUS.parent}:{program.environment()['PATH']}"
    environment = program.environment(HOME=str(tmp_path), PATH=path)

    def fish(command: str) -> str:
        done = subprocess.run(["fish", "-c", command], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert "fish completion installed" in fish("gradus --install-completion; true")
    assert fish("complete -C 'gradus train de'").split() == ["demo"]
