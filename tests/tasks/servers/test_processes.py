"""Both servers for real: they answer on loopback only, refuse strangers, and end with the process that started them."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from gradus.data.errors import StageError
from gradus.tasks.servers.door import basic
from gradus.tasks.servers.processes import _start, free_port, server_environment, start_servers
from gradus.tasks.servers.secret import secret
from tests.hostile import make_hostile
from tests.patience import quiet_port, runs, until

ROOT = Path(__file__).parents[3]


# MLflow's own use of its libraries, where the shared database is created.
@pytest.mark.filterwarnings("ignore:.*noload.*")
def test_both_servers_start_answer_and_end(mlflow_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in make_hostile(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    with start_servers(mlflow_home, quiet_port(), quiet_port()) as servers:
        assert _get(servers.prefect_url, "/api/health") == (200, "true")
        found = _get(servers.prefect_url, "/ui-settings")
        assert json.loads(found[1])["api_url"] == f"{servers.prefect_url}/api"
        assert _get(servers.mlflow_url, "/health") == (200, "OK")
        experiments = "/api/2.0/mlflow/experiments/search?max_results=5"
        assert _get(servers.mlflow_url, experiments)[0] == 401
        assert _get(servers.mlflow_url, experiments, Authorization=basic(secret(mlflow_home)))[0] == 200
        assert _get(servers.mlflow_url, experiments, Host="evil.example")[0] == 400
        for url in (servers.prefect_url, servers.mlflow_url):
            assert _listening_addresses(url) == {"127.0.0.1"}
        family = [child for server in servers.running for child in psutil.Process(server.guard.pid).children(True)]
        assert family
    assert not [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert (mlflow_home / "prefect" / "prefect.db").exists()


def test_a_server_elsewhere_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker.example:5000")
    monkeypatch.setattr(
        "gradus.tasks.servers.processes.start_prefect", lambda home, port: _Ready(f"http://127.0.0.1:{port}")
    )
    with start_servers(tmp_path, quiet_port(), 1) as servers:
        assert servers.mlflow_url == "http://tracker.example:5000"
        assert len(servers.running) == 1


class _Ready:
    def __init__(self, url: str) -> None:
        self.address = url

    def wait_until_healthy(self, limit_s: float) -> None:
        assert limit_s > 0

    def close(self) -> None:
        self.address = ""


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    server = _start("MLflow", ["no_such_module"], {}, "http://127.0.0.1:1", "", tmp_path)
    with pytest.raises(StageError, match=r"MLflow server did not start: .*no_such_module; see .*mlflow-server\.log"):
        server.wait_until_healthy(300)
    server.close()


def test_a_taken_port_is_replaced_by_the_next_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        found = free_port(number)
    assert found != number
    assert free_port(number) == number


def test_the_guard_ends_the_server_and_its_children_when_its_parent_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    server = (
        "import os, subprocess, time; child = subprocess.Popen(['sleep', '60']); "
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}'); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys, time; "
        f"subprocess.Popen([sys.executable, '-m', 'gradus.tasks.servers.processes', sys.executable, '-c', {server!r}], "
        "stdin=subprocess.PIPE, start_new_session=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=ROOT)
    try:
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    for pid in map(int, pids.read_text().split()):
        until(lambda pid=pid: not runs(pid))


def test_models_are_never_unpickled_and_no_server_of_ours_disables_its_guards() -> None:
    assert server_environment()["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    assert server_environment()["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert "disable-security-middleware" not in (ROOT / "tasks" / "servers" / "processes.py").read_text()


def _get(url: str, path: str, **headers: str) -> tuple[int, str]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def _listening_addresses(url: str) -> set[str]:
    number = urlsplit(url).port
    open_sockets = psutil.net_connections("tcp")
    return {c.laddr.ip for c in open_sockets if c.status == psutil.CONN_LISTEN and c.laddr.port == number}
