"""What people type, set or have by mistake ends in one sentence, before Prefect is imported and anything is started."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT

JARGON = re.compile(r"\b\w+(?:Error|Exception)\b|Traceback|pydantic|Input should|\[type=|\[Errno|codec can't")
PROBLEMS = ("--problems", "p.jsonl")


LIMITED = """
import ctypes, os, resource, sys
_, file_bytes, *command = sys.argv
if os.geteuid() == 0:
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability)
if int(file_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(file_bytes), int(file_bytes)))
os.execv(sys.executable, [sys.executable, *command])
"""
"""Start Python without what lets root write where nobody may, with a limit on the size of files unless it is 0.

In a program of its own: the tests' process has threads, in whose forks Python code is not safe.
"""


@dataclass(frozen=True)
class Case:
    """A command, what it must say, and what is odd about it beside its words."""

    words: tuple[str | bytes, ...]
    says: str
    code: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    file_bytes: int = 0


def train(*assignments: str) -> tuple[str, ...]:
    return ("train", "demo", *(word for text in assignments for word in ("--set", text)))


CASES = {
    "no UTF-8": Case(("ingest", b"b\xe4h.jsonl"), "the argument b�h.jsonl is not valid UTF-8"),
    "recipe not UTF-8": Case(("train", "latin.toml"), "latin.toml is not valid UTF-8"),
    "recipe a folder": Case(("train", "folder.toml"), "folder.toml is a folder, not a recipe"),
    "recipe unreadable": Case(("train", "closed.toml"), "there is no permission for closed.toml", 1),
    "recipe of 300 characters": Case(("train", "x" * 300), "no file can have so long a name"),
    "lr nan": Case(train("update.lr=nan"), "update.lr: it must be a finite number"),
    "reward file": Case(
        train('score.rewards=[{name="mine.py:jugde"}]', "score.correct_at=1"), "did you mean judge?", 1
    ),
    "out": Case(("hint", *PROBLEMS, "--out", "p.jsonl/x.parquet"), "p.jsonl cannot be written to"),
    "source closed": Case(("ingest", "closed/p.jsonl"), "there is no permission for closed/p.jsonl", 1),
    "idle": Case(("ingest", "p.jsonl"), "is 'abc', not a number", 2, {"GRADUS_SERVER_IDLE_S": "abc"}),
    "report": Case(("ingest", "p.jsonl"), "set it to now or later", 2, {"GRADUS_REPORT": "x"}),
    "home a file": Case(("runs",), "the home folder {}/p.jsonl cannot be used", 1, {"GRADUS_HOME": "p.jsonl"}),
    "home below a file": Case(("runs",), "a part of its path is a file", 1, {"GRADUS_HOME": "p.jsonl/x"}),
    "home closed": Case(("runs",), "there is no permission for {}/closed", 1, {"GRADUS_HOME": "closed/home"}),
    "files cut off": Case(("ingest", "p.jsonl"), "may write files of 0.1 MB at most", 1, file_bytes=100_000),
    "run unreadable": Case(("show", "closed"), "there is no permission for {}/home/runs/closed/run.json", 1),
    "run torn": Case(("show", "torn"), "torn/run.json does not say what the run is", 1),
    "run long": Case(("sql", "select 1", "--run", "x" * 300), "(300 characters); list them with `gradus runs`"),
    "run only readable": Case(("show", "finished"), "finished: killed", 0),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a home in it, and all that the cases name; Prefect cannot be imported from there."""
    place = tmp_path_factory.mktemp("sentences")
    (place / "p.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    (place / "mine.py").write_text("def judge(rows):\n    return [1.0 for _ in rows]\n")
    (place / "latin.toml").write_bytes(b"name = 'b\xe4h'\n")
    (place / "folder.toml").mkdir()
    (place / "closed.toml").write_text("name = 'x'\n")
    (place / "closed").mkdir()
    for run in ("closed", "torn", "finished"):
        folder = place / "home" / "runs" / run
        folder.mkdir(parents=True)
        (folder / "run.json").write_text('{"verb":' if run == "torn" else json.dumps({"verb": "ingest", "seed": 0}))
        (folder / "events.jsonl").touch()
        (folder / ".lock").write_text("")
    closed = [place / "closed.toml", place / "closed", place / "home" / "runs" / "closed" / "run.json"]
    only_readable = [place / "home" / "runs" / "finished" / ".lock", place / "home" / "runs" / "finished"]
    (place / "home" / "prefect").mkdir()
    (place / "instead" / "prefect").mkdir(parents=True)
    (place / "instead" / "prefect" / "__init__.py").write_text("raise SystemExit('Prefect was imported')\n")
    for path in closed:
        path.chmod(0)
    for path in only_readable:
        path.chmod(0o555)
    yield place
    for path in (*closed, *only_readable):
        path.chmod(0o755)


def started(place: Path, case: Case) -> "subprocess.CompletedProcess[str]":
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "GRADUS_", "MLFLOW_"))}
    own = {"GRADUS_HOME": "home", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{place / 'instead'}:{ROOT / 'src'}"}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", LIMITED, str(case.file_bytes), "-m", "gradus", *case.words],
        cwd=place,
        env={**kept, **own, **case.environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
        check=False,
    )


def test_every_mistake_ends_in_one_sentence(place: Path, subtests: pytest.Subtests) -> None:
    with ThreadPoolExecutor(2) as executor:  # most of each is the start of Python
        answers = zip(CASES.items(), executor.map(partial(started, place), CASES.values()), strict=True)
        for (name, case), done in answers:
            with subtests.test(name):
                said = done.stderr or done.stdout
                assert done.returncode == case.code, said
                assert case.says.format(place) in said
                assert not JARGON.search(said), said
                assert case.code == 0 or said.startswith("gradus: ")
                assert case.code == 0 or len(said.splitlines()) == 1
    assert not (place / "home" / "errors").exists()


def test_a_full_disk_is_named_before_anything_starts(place: Path) -> None:
    disk = place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    full = Case(("ingest", "p.jsonl"), "", 1, {"GRADUS_HOME": str(disk / "home")})
    try:
        done = started(place, full)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"gradus: only 1.0 MB are free where {disk / 'home'} lies; free at least 32 MB")
        with pytest.raises(OSError, match="No space"):
            (disk / "much").write_bytes(b"x" * (2 << 20))
        assert started(place, full).stderr.startswith(f"gradus: only 0.0 MB are free where {disk / 'home'} lies")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
