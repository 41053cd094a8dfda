"""A home's server: one at a time, nobody else at its address, gone when nobody uses it. The door without Prefect."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import psutil
import pytest

from gradus.data.errors import StageError
from gradus.data.runlock import LOCK
from gradus.flows.environment import prefect_api
from gradus.tasks.config.settings import Home
from gradus.tasks.host.home_folder import secret
from gradus.tasks.servers import connection as connections
from gradus.tasks.servers import home_servers
from gradus.tasks.servers.connection import folder_of, join
from gradus.tasks.servers.home_servers import connect, prefect_database
from tests.patience import runs, until
from tests.servers import kill, served, servers
from tests.strangers import NOBODY

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent
LIGHT = "guarded_app:create"

USER = """
import sys, time
from pathlib import Path
from gradus.tasks.servers import home_servers
home_servers.PREFECT_APP = {light!r}
connection = home_servers.connect(Path(sys.argv[1]))
connection.wait()
print(connection.address, flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home whose servers start in a moment, and are gone after the test."""
    for name in ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(HERE / "guarded_app.py", tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT / "src")]))
    monkeypatch.setenv("GRADUS_SERVER_IDLE_S", "2")
    monkeypatch.setattr(home_servers, "PREFECT_APP", LIGHT)
    home = tmp_path / "home"
    home.mkdir()
    yield home
    shutil.rmtree(home, ignore_errors=True)
    until(lambda: not servers(home) and not served(home))


def break_app(home: Path) -> None:
    """From now on no server of a home starts."""
    (home.parent / "guarded_app.py").write_text("import nonesuch")


def user(home: Path, stay_s: float) -> "subprocess.Popen[bytes]":
    """A command that uses the server of a home for a while."""
    command = [sys.executable, "-c", USER.format(light=LIGHT), str(home), str(stay_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)


@contextmanager
def listening(port: int = 0) -> Iterator[tuple[str, list[bytes]]]:
    """A stranger's server: its address, and all that it was sent."""
    heard: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.raw_requestline + self.headers.as_bytes())
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", heard
    finally:
        server.shutdown()
        server.server_close()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_nobody_else_listens_at_the_address_as_long_as_a_command_may_send_the_secret_there(home: Path) -> None:
    connection = connect(home)
    connection.wait()
    (before,) = served(home)
    num_refused, until_s = 0, time.monotonic() + 3
    kill(before.keeper)
    while time.monotonic() < until_s:  # the keeper is dead, its server dies, the next is started
        stranger = socket.socket()
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            stranger.setsockopt(socket.SOL_SOCKET, option, 1)
        with stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port_of(connection.address)))
        num_refused += 1
    assert num_refused > 100
    assert httpx.get(connection.address, timeout=60).text == "here"
    (after,) = served(home)
    assert (after.address, after.keeper == before.keeper) == (before.address, False)
    connection.close()


def test_a_stranger_at_the_address_of_a_killed_keeper_hears_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = user(home, 600)
    assert command.stdout is not None
    address = command.stdout.readline().decode().strip()
    ((_, keeper, server),) = served(home)
    os.kill(command.pid, signal.SIGSTOP)  # it starts no other keeper
    kill(keeper)
    until(lambda: not runs(keeper) and not runs(server))
    command.kill()
    command.communicate()
    with listening(port_of(address)) as (taken, heard):
        assert taken == address
        connection = connect(home)
        connection.wait()
        assert connection.address != address
        connection.close()
        until(lambda: not served(home))
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        with prefect_api(Home(home)) as ready:
            ready()
            assert "PREFECT_API_AUTH_STRING" not in os.environ
        assert home_servers.mlflow_login(home, address) == {}
    assert heard == []


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another account")
def test_a_keeper_hands_the_listening_socket_to_its_own_account_alone_and_is_looked_for_there_alone(home: Path) -> None:
    connection = connect(home)
    connection.wait()
    (file,) = folder_of(home).glob("prefect-*.sock")
    for path in (*reversed(home.parents), home, folder_of(home), file):
        if Path(tempfile.gettempdir()) in path.parents:  # as after a careless `chmod -R`
            path.chmod(0o777 if path.is_relative_to(home.parents[2]) else 0o711)
    ask = f"""
import os, socket, sys, time
os.setgroups([]), os.setresgid({NOBODY}, {NOBODY}, {NOBODY}), os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
asked = socket.socket(socket.AF_UNIX)
os.chdir(sys.argv[1])
asked.connect({file.name!r})
print(socket.recv_fds(asked, 4096, 8)[:2], flush=True)
os.unlink({file.name!r})
stranger = socket.socket(socket.AF_UNIX)
stranger.bind({file.name!r})
stranger.listen()
print("listens", flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", ask, str(folder_of(home))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert [other.stdout.readline() for _ in range(2)] == ["(b'', [])\n", "listens\n"]
            assert join(home, "Prefect") is None
        finally:
            other.kill()
    connection.close()


def test_a_server_that_is_found_is_used_only_if_it_is_as_good(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = connect(home)
    assert connect_and_close(home) == first.address
    monkeypatch.setenv("PREFECT_HOME", "/elsewhere")
    second = connect(home)
    assert second.address != first.address
    monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", "postgresql://elsewhere")
    third = connect(home, pages=True)
    assert third.address not in (first.address, second.address)
    assert connect_and_close(home) == third.address  # one with pages serves those who need none
    for connection in (first, second, third):
        connection.close()
    (file,) = folder_of(home).glob("prefect-*.sock")
    file.unlink()
    file.write_text("no socket")
    connection = connect(home)
    connection.wait()
    connection.close()


def connect_and_close(home: Path) -> str:
    connection = connect(home)
    connection.close()
    return connection.address


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
    assert list(folder_of(home).iterdir()) == [folder_of(home) / LOCK]


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
    time.sleep(1)  # the keeper looks five times a second who uses it
    began = time.monotonic()
    second.kill()
    second.communicate()
    until(lambda: not servers(home))
    assert time.monotonic() - began > 0.2  # of two seconds: it is not killed with its command


def test_a_server_does_not_outlive_its_home_nor_the_one_that_takes_its_place(home: Path) -> None:
    connection = connect(home)
    connection.wait()
    (server,) = servers(home)
    other = connect(home, pages=True)  # as `gradus ui` does
    other.wait()
    time.sleep(1.5)
    assert server in servers(home)  # a command still uses it
    connection.close()
    until(lambda: server not in servers(home), 2)  # at once
    other.close()
    until(lambda: not servers(home))
    connection = connect(home)
    connection.wait()
    shutil.rmtree(home)
    until(lambda: not servers(home), 10)
    connection.close()


@pytest.mark.parametrize("whom", ["server", "keeper"])
def test_a_server_that_dies_while_it_is_used_is_started_again_at_its_address(home: Path, whom: str) -> None:
    first, second = connect(home), connect(home)
    for connection in (first, second):
        connection.wait()
    (before,) = served(home)
    kill(getattr(before, whom))
    assert httpx.get(first.address, timeout=60).text == "here"  # not refused: it waited in the socket's queue
    (state,) = served(home)
    assert (state.address, [state.server]) == (first.address, servers(home))
    first.close()
    kill(getattr(state, whom))
    until(lambda: servers(home) not in ([], [state.server]))
    until(lambda: answers(second.address))
    third = connect(home)  # found as any other
    third.wait()
    assert third.address == second.address
    second.close()
    time.sleep(3)  # longer than it stays idle
    assert len(servers(home)) == 1
    third.close()
    until(lambda: not servers(home))


def test_a_server_that_dies_while_it_starts_is_started_again_a_few_times(home: Path) -> None:
    connection = connect(home)
    for server in until(lambda: servers(home)):
        kill(server)
    connection.wait()
    assert httpx.get(connection.address, timeout=60).text == "here"
    assert len(servers(home)) == 1
    connection.close()
    until(lambda: not servers(home))
    break_app(home)
    connection = connect(home)
    with pytest.raises(StageError, match=r"the Prefect server did not start: .*No module named 'nonesuch'"):
        connection.wait()
    log = (home / "logs" / "prefect-server.log").read_text()
    assert log.count("No module named 'nonesuch'") == 3
    connection.close()


def answers(address: str) -> bool:
    try:
        return httpx.get(address, timeout=60).text == "here"
    except httpx.TransportError:
        return False


def test_a_server_that_cannot_be_started_again_is_lost_with_a_sentence(home: Path) -> None:
    def command() -> None:
        with prefect_api(Home(home)) as ready:
            ready()
            break_app(home)
            (server,) = servers(home)
            kill(server)
            while True:
                httpx.get(os.environ["PREFECT_API_URL"], timeout=60)

    with pytest.raises(StageError, match="the Prefect server ended and did not start again: ") as caught:
        command()
    assert "No module named 'nonesuch'" in str(caught.value)
    assert "prefect-server.log" in str(caught.value.hint)


def test_a_keeper_that_cannot_start_is_not_started_for_ever(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SERVE", ("nonesuch",))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    connection = connect(home)
    with pytest.raises(StageError, match="the Prefect server did not start: no answer"):
        connection.wait()
    connection.close()


def test_the_secret_goes_to_the_homes_own_server_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def known() -> str | None:
        with prefect_api(Home(home)) as ready:
            ready()
            return os.environ.get("PREFECT_API_AUTH_STRING")

    assert known() == secret(home)
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    (state,) = served(home)
    monkeypatch.setenv("PREFECT_API_URL", f"{state.address}/api")
    assert known() == secret(home)
    with listening() as (address, heard):
        monkeypatch.setenv("PREFECT_API_URL", f"{address}/api")
        assert known() is None
        assert heard == []
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "theirs")
    assert known() == "theirs"


def test_databases_are_told_apart_without_their_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set[str]()
    for url in ("", "postgresql://ann:hunter22@db/x", "postgresql://ann:hunter22@db/y"):
        monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", url)
        found.add(prefect_database(tmp_path))
    assert len(found) == 3
    assert not [text for text in found if "hunter22" in text]
