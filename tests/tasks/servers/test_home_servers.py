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
from gradus.tasks.host.home_folder import secret
from gradus.tasks.servers.connection import bound
from gradus.tasks.servers.door import basic
from gradus.tasks.servers.home_servers import server_environment, start_servers
from tests.conftest import TESTS_PATH
from tests.hostile import make_hostile
from tests.patience import quiet_port, runs, until
from tests.servers import a_server, served

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
        family = [*served(mlflow_home, "Prefect"), *served(mlflow_home, "MLflow")]
        assert [bool(each.server) for each in family] == [True, True]
    assert not [each for each in family if runs(each.server)]
    until(lambda: not [each for each in family if runs(each.keeper)], 5)
    assert (mlflow_home / "prefect" / "prefect.db").exists()


def test_a_server_elsewhere_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker.example:5000")
    monkeypatch.setattr("gradus.tasks.servers.home_servers.PREFECT_APP", "guarded_app:create")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with start_servers(tmp_path, quiet_port(), 1) as servers:
        assert servers.mlflow_url == "http://tracker.example:5000"
        assert (len(served(tmp_path)), served(tmp_path, "MLflow")) == (1, [])


def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    server = a_server(tmp_path, "no_such_module:create")
    with pytest.raises(StageError, match=r"MLflow server did not start: .*no_such_module.*; see .*mlflow-server\.log"):
        server.wait()
    server.close()


def test_a_taken_port_is_replaced_by_the_next_free_one() -> None:
    with socket.create_server(("127.0.0.1", quiet_port())) as taken:
        number = taken.getsockname()[1]
        with bound(range(number, number + 2)) as found:
            assert found.getsockname()[1] != number
    with bound([number]) as found:
        assert found.getsockname()[1] == number


APP = """
import subprocess

from starlette.applications import Starlette

child = subprocess.Popen(["sleep", "60"])


def create():
    return Starlette()
"""
PARENT = """
import sys, time
from pathlib import Path
from tests.servers import a_server
a_server(Path(sys.argv[1]), "with_child:create", PYTHONPATH=sys.argv[1]).wait()
print("up", flush=True)
time.sleep(60)
"""


def test_the_keeper_ends_the_server_and_its_children_when_its_parent_is_killed(tmp_path: Path) -> None:
    (tmp_path / "with_child.py").write_text(APP)
    command, env = [sys.executable, "-c", PARENT, str(tmp_path)], {**os.environ, "PYTHONPATH": TESTS_PATH}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            ((_, keeper, server),) = served(tmp_path, "MLflow")
            pids = [keeper, server, *(child.pid for child in psutil.Process(server).children())]
        finally:
            os.kill(process.pid, signal.SIGKILL)
    assert len(pids) == 3
    for pid in pids:
        until(lambda pid=pid: not runs(pid))


def test_models_are_never_unpickled_and_no_server_of_ours_disables_its_guards() -> None:
    assert server_environment()["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    assert server_environment()["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert "disable-security-middleware" not in (ROOT / "tasks" / "servers" / "home_servers.py").read_text()


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
