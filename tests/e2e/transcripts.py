"""Pages of docs/ whose files and commands are run as they stand there, and whose outputs are what was printed.

A fenced block with a file's name behind its language (```toml sums.toml) is written to a fresh folder. In a block of
the language `console` each line `$ gradus ...` (or `$ cp ...`) is run there, in order; what follows is what it prints,
with `[exit N]` after a failure. One line `...` stands for any number of lines. Numbers, dates, sizes and names made of
digits are not compared; a name in a later command stands for what was printed in its place.

    python -m tests.e2e.transcripts --write [PAGE ...]      # put what is printed now into the pages
"""

import argparse
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradus.tasks.host.home_folder import secret
from gradus.tasks.servers.home_servers import connect
from tests.e2e.conftest import ROOT, Program, WarmProgram
from tests.patience import quiet_port

PAGES = (ROOT / "docs" / "first-hour.md", ROOT / "docs" / "collapse.md", ROOT / "docs" / "changed-mind.md")
FOLDER = "/home/me/sums-study"
"""How a page calls the folder that it was run in."""
CUT = "..."
NEW = "00000000"
"""In a command of a page that is not written yet: the name of this kind that was printed last."""
WIDTH = "100"

_FENCE = re.compile(r"^```(\w+)(?: (\S+))?$")
_HEX = re.compile(r"(?<=[/-])[0-9a-f]{8,32}\b")
_NAME = re.compile(r"\b([A-Za-z][\w.]*[/-])([0-9a-f]{8,32})\b")
_KEPT = re.compile(r"\b(?:lr = |rounds? +)[\d.e-]+")
UNSTABLE = (
    (re.compile(r"\b\d{1,2} [A-Z][a-z]{2} \d\d:\d\d\b"), "#"),
    (_HEX, "#"),
    (re.compile(r"[\d.,]+ [kMG]?B\b"), "# B"),
    (re.compile(r"(?<![\w.])[\d.,]+ (?:s|min|h)\b"), "# s"),
)
"""Dates, digests, sizes and durations, which differ between two runs of the same recipe."""
_MASKS = (
    *UNSTABLE,
    (re.compile(r"(?<!\w)[+-]?\d[\d.,:]*(?:e[+-]?\d+)?|\d+"), "#"),
    (re.compile(r"[━─]+"), "─"),
    (re.compile(r"\s+"), " "),
)


@dataclass
class Command:
    """A command of a page with the lines that follow it there."""

    text: str
    shown: list[str] = field(default_factory=list[str])


@dataclass
class Page:
    """Lines of prose and files as they stand, and the commands between them."""

    parts: list[str | Command]
    files: dict[str, str]

    @property
    def commands(self) -> list[Command]:
        return [part for part in self.parts if isinstance(part, Command)]

    def text(self) -> str:
        lines: list[str] = []
        for part in self.parts:
            lines += [part] if isinstance(part, str) else [f"$ {part.text}", *part.shown]
        return "\n".join(lines) + "\n"


def read_page(text: str) -> Page:
    """Return the files and commands of a page."""
    page = Page([], {})
    language, name = "", ""
    for line in text.splitlines():
        if line == "```" and language:
            language = ""
        elif not language and (fence := _FENCE.match(line)):
            language, name = fence[1], fence[2] or ""
        elif language == "console" and line.startswith("$ "):
            page.parts.append(Command(line[2:]))
            continue
        elif language == "console":
            page.commands[-1].shown.append(line)
            continue
        elif language and name:
            page.files[name] = page.files.get(name, "") + line + "\n"
        page.parts.append(line)
    return page


def masked(line: str) -> str:
    """Return a line without what differs between two runs or two machines; rounds and learning rates stay."""
    kept = [found[0] for found in _KEPT.finditer(line)]
    pieces = _KEPT.split(line)
    for pattern, instead in _MASKS:
        pieces = [pattern.sub(instead, piece) for piece in pieces]
    joined = "".join(piece + rest for piece, rest in zip(pieces, [*kept, ""], strict=True))
    return re.sub(r" +", " ", joined).rstrip()


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """Return how what is printed differs from what a page shows; empty if it does not."""
    head, tail = _around_cut(shown)
    if len(printed) < len(head) + len(tail) or (CUT not in shown and len(printed) > len(head)):
        return f"the page shows {len(shown)} lines, {len(printed)} were printed"
    pairs = [*zip(head, printed, strict=False), *zip(tail, printed[len(printed) - len(tail) :], strict=True)]
    return "\n".join(f"- {a}\n+ {b}" for a, b in pairs if masked(a) != masked(b))


def renewed(shown: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return what a page is to show: what was printed, cut where the page cuts."""
    if CUT not in shown:
        return list(printed)
    head, tail = _around_cut(shown)
    return [*printed[: len(head)], CUT, *printed[len(printed) - len(tail) :]]


def _around_cut(shown: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if CUT not in shown:
        return shown, []
    place = shown.index(CUT)
    return shown[:place], shown[place + 1 :]


def run_page(page: Page, program: WarmProgram, folder: Path, each: Callable[[Command, list[str]], None]) -> None:
    """Run the commands of a page in a folder; `each` is given what each of them printed."""
    (folder / "gradus").symlink_to(ROOT)
    for name, content in page.files.items():
        (folder / name).write_text(content)
    known = Names()
    for command in page.commands:
        text = known.meant(command.text)
        printed = _run(shlex.split(text), program, folder)
        known.learn(command.shown, printed)
        each(command, printed)
        command.text = text


class Names:
    """What the names in a page's commands stand for in this run of it."""

    def __init__(self) -> None:
        self._digests: dict[str, str] = {}
        self._latest: dict[str, str] = {}

    def learn(self, shown: Sequence[str], printed: Sequence[str]) -> None:
        """Note the digests that were printed, and in whose place on the page."""
        self._latest.update(found.groups() for line in printed for found in _NAME.finditer(line))
        head, tail = _around_cut(shown)
        pairs = [*zip(head, printed, strict=False), *zip(reversed(tail), reversed(printed), strict=False)]
        for there, here in pairs:
            if masked(there) == masked(here):
                self._digests.update(zip(_HEX.findall(there), _HEX.findall(here), strict=True))

    def meant(self, command: str) -> str:
        """Return a command with the digests of this run."""
        return _NAME.sub(lambda found: found[1] + self._digest(found[1], found[2]), command)

    def _digest(self, family: str, digest: str) -> str:
        if digest == NEW:
            return self._latest.get(family, digest)[: len(NEW)]
        found = {here[: len(digest)] for there, here in self._digests.items() if there.startswith(digest)}
        return found.pop() if len(found) == 1 else digest


def _run(words: list[str], program: WarmProgram, folder: Path) -> list[str]:
    """The lines that a command prints, errors in their place among the rest."""
    if words[0] == "cp":
        shutil.copytree(folder / words[-2], folder / words[-1])
        return []
    assert words[0] == "gradus", words
    with tempfile.TemporaryDirectory() as name:
        output = Path(name) / "output"
        code = program.do(words[1:], folder, output, output, COLUMNS=WIDTH)
        lines = [line.rstrip() for line in output.read_text().replace(str(folder), FOLDER).splitlines()]
    return lines + ([f"[exit {code}]"] if code else [])


def fresh_folder() -> Path:
    """Make a folder whose name is as long as that in the pages, so that tables are as wide."""
    folder = Path(tempfile.mkdtemp(prefix="study-", dir="/tmp"))
    assert len(str(folder)) == len(FOLDER)
    return folder


def page_program(folder: Path, shared: Path, api: str) -> WarmProgram:
    """Return the program with its home in a page's folder, where a command makes it by itself."""
    home = folder / ".gradus"
    home.mkdir()
    for name in ("prefect", "mlflow"):
        (home / name).symlink_to(shared / name)
    return WarmProgram(home, api, secret(shared))


def _write(path: Path, shared: Path, api: str) -> None:
    page, folder = read_page(path.read_text()), fresh_folder()

    def keep(command: Command, printed: list[str]) -> None:
        if changed := difference(command.shown, printed):
            sys.stderr.write(f"{path.name}: $ {command.text}\n{changed}\n")
        command.shown = renewed(command.shown, printed)

    try:
        run_page(page, page_program(folder, shared, api), folder, keep)
        path.write_text(page.text())
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Run pages, write what was printed into them, and say where that is another text than before."""
    parser = argparse.ArgumentParser(description="Run the transcripts of docs/.")
    parser.add_argument("--write", action="store_true", required=True)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    chosen = parser.parse_args().pages
    with tempfile.TemporaryDirectory() as name:
        shared = Path(name)
        assert Program(shared).run("setup")[0] == 0
        server = connect(shared, pages=True, port=quiet_port(), idle_s=0.0)
        try:
            server.wait()
            for path in chosen:
                _write(path, shared, f"{server.address}/api")
        finally:
            server.close(wait_s=10)


if __name__ == "__main__":
    main()
