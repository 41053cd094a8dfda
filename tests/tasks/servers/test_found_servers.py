"""A home's server: one at a time, proved before it is trusted, gone when nobody uses it. The door without Prefect."""

import contextlib
import os
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import psutil
import pytest

from gradus.data.errors import StageError
from gradus.flows.environment import prefect_api
from gradus.tasks.config.settings import Home
from gradus.tasks.servers import prefect_server
from gradus.tasks.servers.found_servers import Found, Proof, ask, fingerprint, folder_of, read_state, write_state
from gradus.tasks.servers.prefect_database import is_migrated, note_migrated
from gradus.tasks.servers.prefect_server import connect, describe, prefect_home
from gradus.tasks.servers.secret import proof, secret, secret_path
from tests.patience import until

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent
LIGHT = ("uvicorn", "--factory", "guarded_app:create", "--log-level", "error", "--lifespan", "on")

USER = """
import sys, time
from pathlib import Path
from gradus.tasks.servers import prefect_server
prefect_server.SERVE = {light!r}
connection = prefect_server.connect(Path(sys.argv[1]))
connection.wait()
print(connection.address, flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home whose servers start in a moment, and are gone after the test."""
    for name in ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), str(ROOT / "src")]))
    monkeypatch.setenv("GRADUS_SERVER_IDLE_S", "2")
    monkeypatch.setattr(prefect_server, "SERVE", LIGHT)
    home = tmp_path / "home"
    home.mkdir()
    yield home
    shutil.rmtree(home, ignore_errors=True)
    until(lambda: not servers(home))


def servers(home: Path) -> list[int]:
    """The processes that serve a home, known or not."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("GRADUS_SERVER_LEASE", "").startswith(
                str(home)
            ):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def user(home: Path, stay_s: float) -> "subprocess.Popen[bytes]":
    """A command that uses the server of a home for a while."""
    command = [sys.executable, "-c", USER.format(light=LIGHT), str(home), str(stay_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)


@contextmanager
def listening(reply: Callable[[str], str]) -> Iterator[tuple[str, list[bytes]]]:
    """A stranger's server: its address, and all that it was sent."""
    heard: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.raw_requestline + self.headers.as_bytes())
            nonce = parse_qs(urlsplit(self.path).query).get("nonce", [""])[0]
            body = reply(nonce).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        server.server_close()


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


def a_server(home: Path, address: str) -> Found:
    """What a state file would say of a server that this very process runs."""
    return describe(home, address, os.getpid(), "some.lease", schedules=True)


def test_a_stranger_proves_nothing_and_learns_nothing(home: Path) -> None:
    key = secret(home)
    answers = {
        Proof.WRONG: ["", "{}", "[]", '{"proof": 7}', '{"proof": "' + "0" * 64 + '"}', "x" * 100_000],
    }
    for reply in answers[Proof.WRONG]:
        with listening(lambda _nonce, reply=reply: reply) as (address, heard):
            assert ask(a_server(home, address), key, 5) is Proof.WRONG
        assert not any(key.encode() in request or b"uthorization" in request for request in heard)
    # One that passes the nonce on to the true server, whose answer is true of the true address alone.
    place = prefect_home(home)
    with listening(lambda n: f'{{"proof": "{proof(key, n, "http://127.0.0.1:1", place)}"}}') as (address, _):
        assert ask(a_server(home, address), key, 5) is Proof.WRONG
    with listening(lambda n: f'{{"proof": "{proof(key, n, address, place)}"}}') as (address, _):
        assert ask(a_server(home, address), key, 5) is Proof.PROVED
        assert ask(replace(a_server(home, address), prefect_home="/elsewhere"), key, 5) is Proof.WRONG
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        assert ask(a_server(home, f"http://127.0.0.1:{silent.getsockname()[1]}"), key, 0.1) is Proof.SILENT
    assert ask(a_server(home, address), key, 5) is Proof.WRONG  # nobody listens there any more


def test_what_a_state_file_names_is_not_used_unless_it_is_the_homes_server(home: Path) -> None:
    folder_of(home).mkdir()
    (folder_of(home) / "some.lease").touch()
    with listening(lambda _nonce: '{"proof": ""}') as (address, heard):
        foreign = a_server(home, address)
        dead = replace(foreign, began=foreign.began - 100)
        other = replace(foreign, prefect_home="/elsewhere")
        for found, num_asked in ((foreign, 1), (dead, 0), (other, 0), (replace(foreign, fingerprint="3.0"), 0)):
            heard.clear()
            write_state(home, found)
            connection = connect(home)
            connection.wait()
            assert connection.address != address
            assert len(heard) == num_asked
            connection.close()
    (folder_of(home) / "state.json").write_text("not JSON")
    connection = connect(home)
    connection.wait()
    connection.close()


def test_commands_at_once_share_one_server_which_leaves_after_the_last(home: Path) -> None:
    commands = [user(home, 1.0) for _ in range(4)]
    said = {command.communicate(timeout=300)[0] for command in commands}
    assert len(said) == 1
    assert len(servers(home)) == 1
    connection = connect(home)  # it stays for the next command
    connection.wait()
    assert connection.address.encode() == said.pop().strip()
    assert httpx.get(connection.address).text == "here"
    time.sleep(3)  # longer than it stays idle: who uses it need not ask it anything
    assert len(servers(home)) == 1
    connection.close()
    until(lambda: not servers(home))
    assert read_state(home) is None
    assert not list(folder_of(home).glob("*.lease"))


def test_an_answer_does_not_wait_for_a_delayed_acknowledgement(home: Path) -> None:
    connection = connect(home)
    connection.wait()
    with httpx.Client(base_url=connection.address) as client:
        elapsed = [client.get("/").elapsed.total_seconds() for _ in range(40)]
    assert min(elapsed[20:]) < 0.03  # 40 ms or more with Nagle's algorithm, once a connection's first answers are over
    connection.close()


def test_a_killed_command_leaves_no_server_for_longer_than_an_idle_one(home: Path) -> None:
    command = user(home, 600)
    assert command.stdout is not None
    command.stdout.readline()
    (server,) = servers(home)
    os.killpg(command.pid, signal.SIGINT)  # as a terminal does
    command.wait(300)
    assert psutil.pid_exists(server)
    assert command.stdout.read() == b""  # the server holds no pipe of the command's
    command.stdout.close()
    second = user(home, 600)
    assert second.stdout is not None
    second.stdout.readline()
    assert servers(home) == [server]
    time.sleep(1)  # the server looks twice a second who uses it
    began = time.monotonic()
    second.kill()
    second.communicate()
    until(lambda: not servers(home))
    assert time.monotonic() - began > 0.2  # of two seconds since the last request: it is not killed with its command


def test_a_server_does_not_outlive_its_home_nor_the_one_that_takes_its_place(home: Path) -> None:
    connection = connect(home)
    connection.wait()
    state = read_state(home)
    assert state is not None
    write_state(home, replace(state, pid=os.getpid()))  # as `gradus ui` does
    time.sleep(1.5)
    assert servers(home) == [state.pid]  # a command still uses it
    connection.close()
    until(lambda: not servers(home))
    (folder_of(home) / "state.json").unlink()
    connection = connect(home)
    connection.wait()
    shutil.rmtree(home)
    until(lambda: not servers(home), 10)
    connection.close()


def test_a_server_that_dies_while_it_is_used_is_started_again_at_its_address(home: Path) -> None:
    first, second = connect(home), connect(home)  # the one has the socket, the other only the address
    for connection in (first, second):
        connection.wait()
    (server,) = servers(home)
    os.kill(server, signal.SIGKILL)
    assert httpx.get(first.address, timeout=60).text == "here"  # not refused: it waited in the socket's queue
    state = read_state(home)
    assert state is not None
    assert (state.address, [state.pid]) == (first.address, servers(home))
    first.close()
    os.kill(state.pid, signal.SIGKILL)
    until(lambda: servers(home) not in ([], [state.pid]))
    until(lambda: answers(second.address))
    third = connect(home)  # found as any other
    third.wait()
    assert third.address == second.address
    second.close()
    time.sleep(3)  # longer than it stays idle
    assert len(servers(home)) == 1
    third.close()
    until(lambda: not servers(home))


def test_a_server_that_dies_while_it_starts_is_started_again_a_few_times(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(home)
    for server in servers(home):
        os.kill(server, signal.SIGKILL)
    connection.wait()
    assert httpx.get(connection.address, timeout=60).text == "here"
    assert len(servers(home)) == 1
    connection.close()
    until(lambda: not servers(home))
    monkeypatch.setattr(prefect_server, "SERVE", ("nonesuch",))
    connection = connect(home)
    with pytest.raises(StageError, match=r"the Prefect server did not start: .*No module named nonesuch"):
        connection.wait()
    log = (home / "logs" / "prefect-background.log").read_text()
    assert log.count("No module named nonesuch") == 3
    connection.close()


def answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=60).text == "here"
    except httpx.TransportError:
        return False


def test_a_server_that_cannot_be_started_again_is_lost_with_a_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> None:
        with prefect_api(Home(home)) as ready:
            ready()
            monkeypatch.setattr(prefect_server, "SERVE", ("nonesuch",))
            (server,) = servers(home)
            os.kill(server, signal.SIGKILL)
            while True:
                httpx.get(os.environ["PREFECT_API_URL"], timeout=60)

    with pytest.raises(StageError, match="the Prefect server ended and did not start again: ") as caught:
        command()
    assert "No module named nonesuch" in str(caught.value)
    assert "prefect-background.log" in str(caught.value.hint)


def test_a_server_that_ended_at_once_is_described_before_it_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", ""])
        until(lambda pid=process.pid: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        monkeypatch.setattr(prefect_server, "_spawn", lambda *_, made=process: (made, 0))
        found, _ = prefect_server._launch(home, "http://127.0.0.1:1", 0, "lease", schedules=False)
        assert (found.pid, found.lives) == (process.pid, False)
        until(lambda pid=process.pid: not psutil.pid_exists(pid))


def test_the_secret_goes_to_the_homes_own_server_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def known() -> str | None:
        with prefect_api(Home(home)) as ready:
            ready()
            return os.environ.get("PREFECT_API_AUTH_STRING")

    assert known() == secret(home)
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    state = read_state(home)
    assert state is not None
    monkeypatch.setenv("PREFECT_API_URL", f"{state.address}/api")
    assert known() == secret(home)
    with listening(lambda _nonce: '{"proof": ""}') as (address, heard):
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        assert known() is None
        assert heard == []
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "theirs")
    assert known() == "theirs"


def test_the_fingerprint_tells_databases_apart_and_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set[str]()
    for database in ("", "postgresql://ann:hunter22@db/x", "postgresql://ann:hunter22@db/y"):
        monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", database)
        found.add(fingerprint())
    assert len(found) == 3
    assert not [text for text in found if "hunter22" in text]


def test_a_database_is_migrated_by_who_knows_it_only_while_it_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_DATABASE_CONNECTION_URL", raising=False)

    def revise(statement: str) -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "prefect.db")) as database:
            database.execute(statement)
            database.commit()

    note_migrated(tmp_path, "3.7.7")
    assert not is_migrated(tmp_path, "3.7.7")  # there is no database
    revise("create table alembic_version (version_num text)")
    revise("insert into alembic_version values ('aaa')")
    assert not is_migrated(tmp_path, "3.7.7")
    note_migrated(tmp_path, "3.7.7")
    assert is_migrated(tmp_path, "3.7.7")
    assert not is_migrated(tmp_path, "3.8.0")
    (tmp_path / "profiles.toml").write_text('PREFECT_API_DATABASE_CONNECTION_URL = "postgresql://elsewhere"')
    assert is_migrated(tmp_path, "3.7.7")  # nobody named that file
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "profiles.toml"))
    assert not is_migrated(tmp_path, "3.7.7")
    monkeypatch.delenv("PREFECT_PROFILES_PATH")
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "sqlite:///elsewhere")
    assert not is_migrated(tmp_path, "3.7.7")
    monkeypatch.delenv("PREFECT_API_DATABASE_CONNECTION_URL")
    assert is_migrated(tmp_path, "3.7.7")
    revise("update alembic_version set version_num = 'of a backup'")
    assert not is_migrated(tmp_path, "3.7.7")
