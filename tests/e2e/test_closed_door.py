"""The door of the servers that `gradus ui` starts: web pages, rebound names and other accounts get nothing done."""

import asyncio
import base64
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import websockets

from gradus.tasks.host.home_folder import USER
from gradus.tasks.preflight.access import ask_mlflow
from gradus.tasks.servers.home_servers import mlflow_login
from gradus.tasks.tracking.names import VIEW_TAG, experiment_address, saved_view
from tests.e2e.conftest import Program
from tests.patience import patient_client, until
from tests.servers import served
from tests.strangers import NOBODY, Route, answers, mlflow_routes

EVIL = "http://evil.example"
SCRIPT = [{"prefect.deployments.steps.run_shell_script": {"script": "touch owned"}}]
SOCKETS = ("events/in", "events/out", "logs/out", "task_runs/subscriptions/scheduled")


@dataclass(frozen=True)
class Place:
    """Running servers, what they are called, and the secret."""

    program: Program
    prefect: str
    mlflow: str
    secret: str
    said: str

    def ask(self, method: str, path: str, body: Any = None, *, known: bool = False, **headers: str) -> httpx.Response:
        """A request to Prefect, with or without the secret."""
        auth = {"Authorization": f"Basic {base64.b64encode(self.secret.encode()).decode()}"} if known else {}
        # As a page may send it without asking first: no content type that would need permission.
        content = None if body is None else json.dumps(body)
        with patient_client() as client:
            return client.request(method, self.prefect + path, content=content, headers={**auth, **headers})

    @property
    def login(self) -> dict[str, str]:
        """The header by which MLflow knows the owner."""
        return {"authorization": f"Basic {base64.b64encode(f'{USER}:{self.secret}'.encode()).decode()}"}


@pytest.fixture(scope="module")
def place(new_program: Callable[..., Program]) -> Iterator[Place]:
    program = new_program(alone=True)
    process = program.start("ui", "--prefect-port", "4330", "--mlflow-port", "5330")
    try:
        printed = program.home / "stdout"
        until(lambda: process.poll() is not None or "password" in printed.read_text(), 600, 0.2)
        assert process.poll() is None, program.told()
        out = printed.read_text()
        urls = dict(line.split() for line in out.splitlines()[:2])
        key = (program.home / "prefect-password").read_text().strip()
        yield Place(program, urls["Prefect"], urls["MLflow"].partition("/#/")[0], key, out)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def deployment(place: Place) -> str:
    """A deployment as `gradus serve` makes them."""
    flow = place.ask("POST", "/api/flows/", {"name": "door"}, known=True).json()["id"]
    made = place.ask("POST", "/api/deployments/", {"name": "door", "flow_id": flow, "pull_steps": []}, known=True)
    return made.json()["id"]


def stored(place: Place, deployment: str) -> tuple[Any, int]:
    """What a page would like to change: the deployment's steps, and the runs there are."""
    ((steps,),) = place.program.prefect("select pull_steps from deployment where id = ?", deployment)
    ((runs,),) = place.program.prefect("select count(*) from flow_run where deployment_id = ?", deployment)
    return json.loads(steps), runs


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:1", "https://127.0.0.1:4330"])
@pytest.mark.parametrize("known", [False, True])
def test_a_web_page_can_neither_change_a_deployment_nor_start_it(
    place: Place, deployment: str, origin: str, known: bool
) -> None:
    change, start = {"pull_steps": SCRIPT}, {"state": {"type": "SCHEDULED"}}
    asked = [
        place.ask("PATCH", f"/api/deployments/{deployment}", change, known=known, origin=origin),
        place.ask("POST", f"/api/deployments/{deployment}/create_flow_run", start, known=known, origin=origin),
        place.ask("OPTIONS", f"/api/deployments/{deployment}", known=known, origin=origin),
    ]
    assert [answer.status_code for answer in asked] == [403, 403, 403]
    assert not any("access-control-allow-origin" in answer.headers for answer in asked)
    assert stored(place, deployment) == ([], 0)


def test_a_name_that_an_attacker_rebinds_to_this_machine_is_refused(place: Place, deployment: str) -> None:
    for host in ("evil.example", "evil.example:4330", "127.0.0.1.evil.example", "localhost.evil.example:4330"):
        change = place.ask("PATCH", f"/api/deployments/{deployment}", {"pull_steps": SCRIPT}, known=True, host=host)
        assert change.status_code == 400
        assert place.ask("GET", "/", host=host).status_code == 400
    assert stored(place, deployment) == ([], 0)


def test_who_does_not_know_the_secret_is_refused_by_every_route(place: Place, deployment: str) -> None:
    paths = place.ask("GET", "/openapi.json").json()["paths"]
    routes = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    assert len(routes) > 150
    open_to_all = set()
    for method, path in routes:
        asked = path.replace("{id}", deployment).replace("{", "").replace("}", "")
        answer = place.ask(method, asked if asked.startswith("/api") else f"/api{asked}", {})
        if answer.status_code != 401:
            open_to_all.add((method, path.removeprefix("/api"), answer.status_code))
    assert open_to_all == {("GET", "/health", 200)} | {found for found in open_to_all if found[1] == "/ready"}
    wrong = base64.b64encode(b"guessed").decode()
    assert place.ask("GET", "/api/version", authorization=f"Basic {wrong}").status_code == 401
    assert stored(place, deployment) == ([], 0)


def test_who_knows_it_works_and_the_pages_are_served(place: Place) -> None:
    assert place.ask("GET", "/api/version", known=True).status_code == 200
    own = place.ask("GET", "/api/version", known=True, origin=place.prefect)
    assert own.headers["access-control-allow-origin"] == place.prefect
    page = httpx.get(place.prefect, headers={"accept": "text/html"}, follow_redirects=True)
    assert page.status_code == 200
    assert "<html" in page.text
    settings = place.ask("GET", "/ui-settings").json()
    assert (settings["auth"], settings["api_url"]) == ("BASIC", f"{place.prefect}/api")
    localhost = place.prefect.replace("127.0.0.1", "localhost")
    assert place.ask("GET", "/api/health", host=localhost.removeprefix("http://"), origin=localhost).status_code == 200


def test_a_command_of_this_home_finds_the_server_and_its_api_needs_no_other_setting(place: Place) -> None:
    program = place.program
    before = served(program.home)
    assert [server.address for server in before] == [place.prefect]
    found = program.json("ingest", "train.jsonl", "--set", "limit=3")
    assert found["rows"] == 3
    assert served(program.home) == before
    assert program.prefect_state(program.launches("ingest-*")[0]) == "COMPLETED"
    # Named by hand, as for `gradus serve` in another terminal, both are known to be ours as well.
    named = {"PREFECT_API_URL": f"{place.prefect}/api", "MLFLOW_TRACKING_URI": place.mlflow, "GRADUS_REPORT": "now"}
    code, _, err = program.run("hint", "--problems", "train.jsonl", **named)
    assert code == 0, err
    assert set(program.mlflow_states(program.launches("hint-*")[0])) == {"FINISHED"}


async def opened(place: Place, path: str, token: str | None, **more: Any) -> str:
    """How a websocket of Prefect's answers: `auth_success`, the code of its close, or the status of its refusal."""
    address = place.prefect.replace("http", "ws", 1) + "/api/" + path
    try:
        async with websockets.connect(address, **more) as socket:
            await socket.send(json.dumps({"type": "auth", "token": token}))
            return json.loads(await asyncio.wait_for(socket.recv(), 20))["type"]
    except websockets.ConnectionClosed as closed:
        return str(closed.rcvd.code if closed.rcvd else closed)
    except websockets.InvalidStatus as refused:
        return str(refused.response.status_code)


@pytest.mark.parametrize("path", SOCKETS)
def test_websockets_are_behind_the_same_door(place: Place, path: str) -> None:
    def answer(token: str | None = place.secret, **more: Any) -> str:
        return asyncio.run(opened(place, path, token, **more))

    prefect: Any = {"subprotocols": ["prefect"]}
    assert answer(**prefect) == "auth_success"
    assert answer(None, **prefect) == "1008"
    assert answer("guessed", **prefect) == "1008"
    assert answer() == "403"  # without Prefect's subprotocol, as a page's script may ask
    assert answer(origin=EVIL, **prefect) == "403"
    rebound = replace(place, prefect=place.prefect.replace("127.0.0.1", "evil.example"))
    there = {"host": "127.0.0.1", "port": int(place.prefect.rpartition(":")[2])}
    assert asyncio.run(opened(rebound, path, place.secret, **there, **prefect)) == "400"


def test_the_address_of_mlflow_opens_it_on_trainings(place: Place) -> None:
    with patient_client(headers=place.login) as client:
        asked = {"experiment_name": "gradus"}
        found = client.get(f"{place.mlflow}/api/2.0/mlflow/experiments/get-by-name", params=asked).json()["experiment"]
    opened = experiment_address(place.mlflow, found["experiment_id"])
    assert f"MLflow   {opened}\n" in place.said
    assert f"MLflow also for a user, `{USER}`" in place.said
    assert opened.endswith("/runs?workflowType=machine_learning&viewStateShareKey=gradus")
    assert {"key": VIEW_TAG, "value": saved_view()} in found["tags"]


@pytest.fixture(scope="module")
def routes() -> list[Route]:
    """Every route that MLflow's own server has, from its tables."""
    found = mlflow_routes()
    assert len(found) > 900
    return found


def test_another_account_is_refused_by_every_route_of_mlflow(place: Place, routes: list[Route]) -> None:
    found = answers(place.mlflow, routes, uid=NOBODY if os.getuid() == 0 else None)
    assert {route for route, status in zip(routes, found, strict=True) if status not in (401, 404)} == {
        ("GET", "/health")
    }
    wrong = [{"authorization": f"Basic {base64.b64encode(given.encode()).decode()}"} for given in GUESSED]
    wrong += [{"authorization": f"Bearer {place.secret}"}, {"authorization": "Basic"}, {"authorization": "Basic \xff"}]
    for headers in wrong:
        assert answers(place.mlflow, [("GET", "/version")], headers) == [401]


GUESSED = ("", ":", "gradus:", "gradus:guessed", "admin:password1234")


def test_what_could_run_or_call_something_is_no_route_even_for_the_owner(place: Place, routes: list[Route]) -> None:
    kinds = (
        *("assistant", "mcp-servers", "gateway", "gateway-proxy", "webhooks", "scorer", "scorers", "issues", "genai"),
        *("demo", "jobs", "prompt-optimization", "create-promptlab-run", "ui-telemetry", "workspaces"),
    )
    left_out = [route for route in routes if set(kinds) & set(route[1].split("/"))]
    assert {kind for _, path in left_out for kind in path.split("/")} >= set(kinds)
    assert len(left_out) > 390
    found = answers(place.mlflow, left_out, place.login)
    assert {route for route, status in zip(left_out, found, strict=True) if status != 404} == set()


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:1", "http://localhost:8888"])
def test_a_web_page_is_refused_by_mlflow_with_the_password_too(place: Place, routes: list[Route], origin: str) -> None:
    methods = dict(routes)  # one path of each
    assert set(methods) >= {"GET", "POST", "PATCH", "PUT", "DELETE", "OPTIONS", "HEAD"}
    some = [*methods.items(), ("GET", "/graphql"), ("POST", "/graphql"), ("GET", "/health")]
    assert set(answers(place.mlflow, some, {**place.login, "origin": origin})) == {403}


def test_mlflow_refuses_what_a_browser_loads_for_another_site_and_opens_a_link(place: Place) -> None:
    def status(**fetch: str) -> int:
        headers = {**place.login, **{f"sec-fetch-{name}": value for name, value in fetch.items()}}
        return answers(place.mlflow, [("GET", "/version")], headers)[0]

    assert [status(site=site, dest=kind) for site in ("cross-site", "same-site") for kind in ("image", "iframe")] == (
        [403] * 4
    )
    assert status(site="cross-site", dest="document", mode="navigate") == 200
    assert status(site="same-origin", dest="empty") == 200


def test_the_login_is_lent_to_this_server_alone(place: Place) -> None:
    home, port = place.program.home, place.mlflow.rpartition(":")[2]
    lent = mlflow_login(home, place.mlflow)
    assert lent == {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": place.secret}
    assert not ask_mlflow(place.mlflow, lent).problem
    assert "wants credentials, and none are set (401)" in ask_mlflow(place.mlflow).problem
    others = (place.prefect, f"http://localhost:{port}", f"https://127.0.0.1:{port}", f"http://a:b@127.0.0.1:{port}")
    assert [mlflow_login(home, uri) for uri in (*others, "http://127.0.0.1:1", "http://127.0.0.1", "sqlite:///x")] == (
        [{}] * 7
    )


def test_mlflow_refuses_names_that_are_not_its_own(place: Place) -> None:
    port = place.mlflow.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", f"localhost.evil:{port}"):
        assert set(
            answers(place.mlflow, [("GET", "/version"), ("POST", "/graphql")], {**place.login, "host": host})
        ) == {400}
    own = {**place.login, "host": f"localhost:{port}", "origin": f"http://localhost:{port}"}
    assert answers(place.mlflow, [("GET", "/version")], own) == [200]


def test_who_knows_the_password_works_with_mlflow_in_python(place: Place, tmp_path: Path) -> None:
    """As docs/servers.md says: what a notebook does, artifacts and traces through the server."""
    code = """
import mlflow
mlflow.set_experiment("notebook")
with mlflow.start_run() as run:
    mlflow.log_metric("m", 0.5)
    mlflow.log_text("hello", "folder/note.txt")
    with mlflow.start_span("thought"):
        pass
mlflow.flush_trace_async_logging()
client = mlflow.MlflowClient()
assert client.get_run(run.info.run_id).data.metrics == {"m": 0.5}
assert run.info.artifact_uri.startswith("mlflow-artifacts:/"), run.info.artifact_uri
assert mlflow.artifacts.load_text(run.info.artifact_uri + "/folder/note.txt") == "hello"
assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["folder"]
(trace,) = mlflow.search_traces(return_type="list")
assert [span.name for span in mlflow.get_trace(trace.info.trace_id).data.spans] == ["thought"]
client.delete_experiment(run.info.experiment_id)
"""
    login = {"MLFLOW_TRACKING_URI": place.mlflow, "MLFLOW_TRACKING_USERNAME": USER}
    env = place.program.environment(**login, MLFLOW_TRACKING_PASSWORD=place.secret)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_secret_is_in_its_file_alone_which_is_mine_alone(place: Place) -> None:
    home: Path = place.program.home
    assert stat.S_IMODE((home / "prefect-password").stat().st_mode) == 0o600
    assert len(place.secret) >= 40
    assert str(home / "prefect-password") in place.said
    told = [path for path in home.rglob("*") if path.is_file() and place.secret.encode() in path.read_bytes()]
    assert told == [home / "prefect-password"]
    for process in psutil.process_iter(["cmdline"]):
        assert place.secret not in " ".join(process.info["cmdline"] or [])
