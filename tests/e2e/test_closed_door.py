"""The door of the servers that `gradus ui` starts: web pages, rebound names and other accounts get nothing done."""

import asyncio
import base64
import json
import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import websockets

from gradus.tasks.tracking.view import VIEW_TAG, experiment_address, saved_view
from tests.patience import patient_client

Program = Any
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


@pytest.fixture(scope="module")
def place(new_program: Callable[..., Program]) -> Iterator[Place]:
    program = new_program(alone=True)
    process = program.start("ui", "--prefect-port", "4330", "--mlflow-port", "5330")
    try:
        deadline = time.monotonic() + 600
        while "password" not in (out := (program.home / "stdout").read_text()):
            assert process.poll() is None, program.told()
            assert time.monotonic() < deadline
            time.sleep(0.2)
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
        assert place.ask("GET", f"/gradus/identity?nonce={'0' * 64}", host=host).status_code == 400
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
    found = program.json("ingest", "train.jsonl", "--set", "limit=3")
    assert found["rows"] == 3
    assert not (program.home / "logs" / "prefect-background.log").exists()
    assert program.prefect_state(program.launches("ingest-*")[0]) == "COMPLETED"
    # Named by hand, as for `gradus serve` in another terminal, it is known to be ours as well.
    code, _, err = program.run("hint", "--problems", "train.jsonl", PREFECT_API_URL=f"{place.prefect}/api")
    assert code == 0, err


def test_a_deployment_served_beside_it_runs_its_stage(
    place: Place, new_program: Callable[..., Program], tmp_path: Path
) -> None:
    program, out = new_program(alone=True), tmp_path / "problems.parquet"
    (program.home / "mine.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n{"question": "no gold"}\n')
    reach = {"PREFECT_API_URL": f"{place.prefect}/api", "PREFECT_API_AUTH_STRING": place.secret}
    process = program.start("serve", **reach)
    try:
        path = "/api/deployments/name/ingest/ingest"
        deployed = until(lambda: place.ask("GET", path, known=True), lambda answer: answer.is_success)
        run = {"parameters": {"source": "mine.jsonl", "out": str(out)}, "state": {"type": "SCHEDULED"}}
        made = place.ask("POST", f"/api/deployments/{deployed.json()['id']}/create_flow_run", run, known=True)
        flow_run = made.json()["id"]

        def ended(answer: httpx.Response) -> bool:
            assert process.poll() is None, program.told()
            return answer.json()["state"]["type"] in ("COMPLETED", "FAILED", "CRASHED")

        state = until(lambda: place.ask("GET", f"/api/flow_runs/{flow_run}", known=True), ended).json()["state"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=120)
    assert state["type"] == "COMPLETED", state["message"]
    assert out.is_file()
    chosen = {"flow_runs": {"id": {"any_": [flow_run]}}}
    tasks = place.ask("POST", "/api/task_runs/filter", chosen, known=True).json()
    assert [(task["name"], task["state"]["name"]) for task in tasks] == [("ingest-0", "Completed")]


def until(ask: Callable[[], httpx.Response], found: Callable[[httpx.Response], bool]) -> httpx.Response:
    """Ask until an answer is as it should be."""
    deadline = time.monotonic() + 600
    while not found(answer := ask()):
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)
    return answer


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
    with patient_client() as client:
        asked = {"experiment_name": "gradus"}
        found = client.get(f"{place.mlflow}/api/2.0/mlflow/experiments/get-by-name", params=asked).json()["experiment"]
    opened = experiment_address(place.mlflow, found["experiment_id"])
    assert f"MLflow   {opened}\n" in place.said
    assert opened.endswith("/runs?workflowType=machine_learning&viewStateShareKey=gradus")
    assert {"key": VIEW_TAG, "value": saved_view()} in found["tags"]


def test_mlflow_refuses_foreign_names_and_pages(place: Place) -> None:
    search = f"{place.mlflow}/api/2.0/mlflow/experiments/search"
    assert httpx.post(search, json={"max_results": 1}).status_code == 200
    assert httpx.post(search, json={"max_results": 1}, headers={"origin": EVIL}).status_code == 403
    assert httpx.post(search, json={"max_results": 1}, headers={"host": "evil.example"}).status_code == 403


def test_the_secret_is_in_its_file_alone_which_is_mine_alone(place: Place) -> None:
    home: Path = place.program.home
    assert stat.S_IMODE((home / "prefect-password").stat().st_mode) == 0o600
    assert len(place.secret) >= 40
    assert str(home / "prefect-password") in place.said
    told = [path for path in home.rglob("*") if path.is_file() and place.secret.encode() in path.read_bytes()]
    assert told == [home / "prefect-password"]
    for process in psutil.process_iter(["cmdline"]):
        assert place.secret not in " ".join(process.info["cmdline"] or [])
