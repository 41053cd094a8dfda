"""Languages of programs: the file of a program, and the commands that build and run it within the sandbox."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from gradus.models.sandbox import SEARCHED, Program


@dataclass(frozen=True)
class Language:
    """A language: names in fences, the file of a program, its commands."""

    names: tuple[str, ...]
    file: str
    build: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    reserves: bool = False

    def program(self, source: str) -> Program:
        """Return a program of this language."""
        return Program(source, self.file, self.build, self.command, self.reserves)

    def missing(self) -> str:
        """Return the name of a command that this machine lacks; empty if it has all."""
        commands = [command[0] for command in (self.build, self.command) if command and "/" not in command[0]]
        return next((name for name in commands if shutil.which(name, path=SEARCHED) is None), "")


LANGUAGES: Mapping[str, Language] = {
    "python": Language(("py", "python3"), "main.py"),
    "c": Language((), "main.c", ("gcc", "-O2", "-o", "main", "main.c", "-lm"), ("./main",)),
    "cpp": Language(("c++", "cxx"), "main.cpp", ("g++", "-O2", "-std=c++17", "-o", "main", "main.cpp"), ("./main",)),
    "javascript": Language(("js", "node"), "main.js", (), ("node", "main.js"), reserves=True),
    "bash": Language(("sh", "shell"), "main.sh", (), ("bash", "main.sh")),
    "perl": Language(("pl",), "main.pl", (), ("perl", "main.pl")),
    "ruby": Language(("rb",), "main.rb", (), ("ruby", "main.rb")),
}


def language_of(name: str) -> Language | None:
    """Return the language of a name, as a fence or a problem writes it; None for another."""
    name = name.strip().casefold()
    return LANGUAGES.get(name) or next((each for each in LANGUAGES.values() if name in each.names), None)
