"""One undisturbed run of the tiny recipe through the real program, shared by the end-to-end tests."""

import contextlib
import fcntl
import json
import os
import pty
import shutil
import sqlite3
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest

from gradus.tasks.host.home_folder import secret
from gradus.tasks.runs.journal import read_events
from gradus.tasks.servers.connection import Connection
from gradus.tasks.servers.home_servers import connect
from gradus.tasks.tracking.client import status
from tests.conftest import Server as Loopback
from tests.conftest import copy_databases
from tests.patience import quiet_port, until

ROOT = Path(__file__).parents[2]
RECIPE = Path(__file__).parent / "tiny.toml"
SAMPLES = ROOT / "data" / "samples"


def _write_some(table: Path, file: Path, every: int) -> None:
    """Write every N-th problem as a line of a user's own file; the recipe reads these through `ingest`."""
    fields = ["question", "answer", "solution", "domain"]
    rows = pq.read_table(table, columns=fields).to_pylist()[::every]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Program:
    """The `gradus` program with a home of its own; a server that it starts ends with its command."""

    def __init__(self, home: Path, api: str = "", key: str = "", *, reports: bool = False) -> None:
        self.home = home
        self.reports = reports
        self.command = [sys.executable, "-P", "-m", "gradus"]
        self.module_path = str(ROOT / "src")
        self.settings = {"PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": key} if api else {}
        self.processes: list[subprocess.Popen[bytes]] = []

    def environment(self, **extra: str) -> dict[str, str]:
        """The program's environment; only who looks at MLflow pays for its import by every command."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "GRADUS_", "MLFLOW_"))}
        return {
            **kept,
            "GRADUS_HOME": str(self.home),
            "GRADUS_SERVER_IDLE_S": "0",
            "GRADUS_REPORT": "now" if self.reports else "later",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": self.module_path,
            **self.settings,
            **extra,
        }

    def start(self, *arguments: str, **extra: str) -> "subprocess.Popen[bytes]":
        """Start the program; files, not pipes, since an orphaned server would hold a pipe open."""
        with (self.home / "stdout").open("wb") as out, (self.home / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [*self.command, *arguments],
                env=self.environment(**extra),
                cwd=self.home,
                stdout=out,
                stderr=err,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Kill what a failed test left running; until then it is held, since its warning would fail another test."""
        for process in self.processes:
            process.kill()
            process.wait()

    def run(self, *arguments: str, **extra: str) -> tuple[int, str, str]:
        """Run the program: exit code, stdout, stderr."""
        with self.start(*arguments, **extra) as process:
            code = process.wait(timeout=840)
        return code, (self.home / "stdout").read_text(), (self.home / "stderr").read_text()

    def told(self) -> str:
        """What the program said to the person at the terminal."""
        return (self.home / "stderr").read_text()

    def json(self, *arguments: str) -> dict[str, Any]:
        """Run the program with --json; it must succeed."""
        code, out, err = self.run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    def wait_for(self, pattern: str, limit_s: float = 360) -> None:
        """Wait until the lake has a file."""
        until(
            lambda: list((self.home / "lake").glob(pattern)), limit_s, wrong=lambda: f"no {pattern} within {limit_s} s"
        )

    def events(self, run: str = "*") -> list[dict[str, Any]]:
        """What the journal of a run has, or of this home's only one."""
        return list(read_events(next((self.home / "runs").glob(f"{run}/events.jsonl")).parent))

    def rows(self, folder: str) -> list[dict[str, Any]]:
        """Every row of an artifact or, as TABLE/*, of a table of the lake, by the files themselves."""
        files = sorted((self.home / "lake").glob(f"{folder}/part-*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def launches(self, run: str = "*") -> list[str]:
        """Prefect's ids of every start of a run, or of this home's only one, in order."""
        return [event["prefect_flow_run_id"] for event in self.events(run) if event["event"] == "run_started"]

    def started(self) -> list[str]:
        """Prefect's ids of every start of every run of this home, in order."""
        folders = sorted((self.home / "runs").glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)
        return [found for path in folders for found in self.launches(path.parent.name)]

    def outputs(self, run: str, stage: str) -> list[Path]:
        """The folders that a stage of a run wrote, in order."""
        made = [e["output"] for e in self.events(run) if e["event"] == "stage_started" and e["stage"] == stage]
        return [self.home / "lake" / output for output in made]

    def prefect(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        """Rows of a query to Prefect's database."""
        with contextlib.closing(sqlite3.connect(self.home / "prefect" / "prefect.db")) as database:
            return database.execute(query, values).fetchall()

    def prefect_state(self, flow_run: str) -> str:
        """What Prefect's database says of a flow run."""
        return self.prefect("select state_type from flow_run where id = ?", flow_run)[0][0]

    def mlflow_states(self, flow_run: str) -> list[str]:
        """What MLflow's database says of the runs that one start made, once their reporter has told all."""
        journals = (self.home / "runs").glob("*/events.jsonl")
        folders = [journal.parent for journal in journals if flow_run in self.launches(journal.parent.name)]
        until(
            lambda: not any(status(folder).untold for folder in folders), 600, 0.1
        )  # the reporter has told everything
        query = """select status from runs join tags using (run_uuid) where key = 'prefect.flow_run_id' and value = ?"""
        with contextlib.closing(sqlite3.connect(self.home / "mlflow" / "mlflow.db")) as database:
            return [status for (status,) in database.execute(query, [flow_run])]

    def manifests(self) -> dict[str, bytes]:
        """Every manifest of the lake by artifact."""
        lake = self.home / "lake"
        return {str(p.parent.relative_to(lake)): p.read_bytes() for p in sorted(lake.glob("*/*/_manifest.json"))}


def on_a_terminal(program: Program, asked: bytes, answer: bytes, *arguments: str) -> bytes:
    """Run the program on a terminal of 80 columns, answer once what it asks; return what it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = program.environment(TERM="xterm-256color")
    with subprocess.Popen(
        [*program.command, *arguments], env=environment, cwd=program.home, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        seen, answered = b"", False
        with contextlib.suppress(OSError):  # Linux: the other end is closed
            while part := os.read(ours, 4096):
                seen += part
                if not answered and asked in seen:
                    answered = os.write(ours, answer) == len(answer)
        os.close(ours)
        assert process.wait(timeout=60) == 0
    return seen


class WarmProgram(Program):
    """The program in a process that runs all commands of the tests of a pytest worker: those that need no own one.

    Programs with other modules on their path have another process.
    """

    warm: ClassVar[dict[str, "subprocess.Popen[str]"]] = {}

    def run(self, *arguments: str, **extra: str) -> tuple[int, str, str]:
        """Run a command: exit code, stdout, stderr; in a process of its own if it is to fail there."""
        if "GRADUS_FAULT" in extra:
            return super().run(*arguments, **extra)
        out, err = self.home / "stdout", self.home / "stderr"
        code = self.do(arguments, self.home, out, err, **extra)
        return code, out.read_text(), err.read_text()

    def do(self, arguments: Sequence[str], folder: Path, out: Path, err: Path, **extra: str) -> int:
        """Run a command in a folder, its output in two files, which may be one; return its exit code."""
        env = self.environment(**extra)
        env.pop("PYTEST_CURRENT_TEST", None)
        process = self.warm.get(self.module_path)
        if process is None or process.poll() is not None:
            command = [sys.executable, "-P", "-m", "tests.e2e.warm"]
            paths = os.pathsep.join((self.module_path, str(ROOT)))
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = subprocess.Popen(command, env={**env, "PYTHONPATH": paths}, start_new_session=True, **pipes)
            self.warm[self.module_path] = process
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"words": arguments, "env": env, "folder": str(folder), "stdout": str(out), "stderr": str(err)}
        try:
            print(json.dumps(asked), file=process.stdin, flush=True)
            code = process.stdout.readline()
        except BaseException:  # a test that takes too long; the next command is not to read the answer of this one
            process.kill()
            raise
        assert code, f"the process ended with {process.wait()}"
        return int(code)


@pytest.fixture(scope="session", autouse=True)
def _warm_process() -> Iterator[None]:
    """End the processes of warm programs; Prefect's server is gone, to which they would send events."""
    yield
    for process in WarmProgram.warm.values():
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def served_home(databases: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Connection]]:
    """A home with a Prefect server and the databases, which are slow to create: only the first worker does so."""
    home = tmp_path_factory.mktemp("shared")
    with contextlib.ExitStack() as running:

        def serve() -> Connection:
            server = connect(home, pages=True, port=quiet_port(), idle_s=0.0)
            running.callback(server.close, wait_s=10)
            server.wait()
            return server

        with databases.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            first = not databases.exists()
            if first:
                code, _, err = Program(home).run("setup")
                assert code == 0, err
                server = serve()
                copy_databases(home, databases.with_suffix(".new"))
                databases.with_suffix(".new").rename(databases)
        if not first:
            copy_databases(databases, home)
            server = serve()
        yield home, server


@pytest.fixture(scope="session")
def shared(served_home: tuple[Path, Connection]) -> Path:
    """A home whose databases of Prefect and MLflow all programs share."""
    return served_home[0]


@pytest.fixture(scope="session")
def prefect_api(served_home: tuple[Path, Connection]) -> str:
    """The address of a real Prefect server, whose start would otherwise be most of every short command."""
    return f"{served_home[1].address}/api"


@pytest.fixture(scope="session")
def new_program(
    shared: Path, databases: Path, prefect_api: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Program]]:
    """Make programs with fresh homes; if `alone`, without a server, as on a laptop, where each command starts one.

    If `apart`, Prefect's database is one that no other server looks at. If `warm`, commands share a process.
    """
    programs: list[Program] = []

    def make(*, alone: bool = False, apart: bool = False, reports: bool = False, warm: bool = False) -> Program:
        home = tmp_path_factory.mktemp("home")
        for name, every in (("train", 14), ("heldout", 6)):
            _write_some(SAMPLES / f"{name}.parquet", home / f"{name}.jsonl", every)
        (home / "mlflow").symlink_to(shared / "mlflow")
        if apart:
            shutil.copytree(databases / "prefect", home / "prefect")
        else:
            (home / "prefect").symlink_to(shared / "prefect")
        api, key = ("", "") if alone else (prefect_api, secret(shared))
        programs.append((WarmProgram if warm else Program)(home, api, key, reports=reports))
        return programs[-1]

    yield make
    for program in programs:
        program.end()


@pytest.fixture(scope="session")
def undisturbed(new_program: Callable[..., Program]) -> tuple[Program, dict[str, Any]]:
    """The tiny recipe, run to its end by nobody disturbed, with a server of its own; later commands use that of all."""
    program, later = new_program(alone=True, reports=True), new_program(warm=True)
    result = program.json("train", str(RECIPE))
    later.home = program.home
    return later, result


def shorter(_path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Answer that the shorter of two answers is better."""
    _, first, second = body["messages"][-1]["content"].split("|")
    text = f"[[{'A' if len(first) <= len(second) else 'B'}]]"
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return 200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


@pytest.fixture(scope="module")
def judge() -> Iterator[Loopback]:
    """A server with OpenAI's API that prefers the shorter of two answers, behind the question and `|`."""
    made = Loopback()
    made.answer = shorter
    yield made
    made.close()
