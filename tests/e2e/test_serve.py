"""`gradus serve` beside a real Prefect server: schedules, wrong parameters, kills, cancellations, people's changes."""

import base64
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import psutil
import pytest

from gradus.tasks.host.home_folder import secret
from gradus.tasks.runs.journal import read_events
from tests import patience
from tests.e2e.conftest import RECIPE, Program
from tests.hostile import make_settings
from tests.servers import served as served_by

SLOW = "import time\n\n\ndef slow(rows):\n    time.sleep(600)\n    return [0.0 for _ in rows]\n"
GONE_S = 20
"""Until every process of a cancelled run has ended: 4 s on a quiet machine, of which Prefect's runner waits 3."""
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


def until(found: Callable[[], Any], what: str) -> Any:
    """Wait with pauses: most of these ask Prefect's server, whose answers cost more than the wait."""
    return patience.until(found, 720, 0.4, lambda: f"no {what}")


class Served:
    """A program that serves its deployments, and Prefect's API beside it."""

    def __init__(self, program: Program, url: str, key: str) -> None:
        self.program = program
        login = base64.b64encode(key.encode()).decode()
        self.api = patience.patient_client(base_url=url, headers={"Authorization": f"Basic {login}"})
        self.process: subprocess.Popen[bytes] | None = None
        self.start_s = 0.0

    def start(self) -> None:
        """Start `gradus serve` and wait until it has sent its deployments and asks for runs."""
        started, began = time.monotonic(), datetime.now(UTC).isoformat()
        self.process = self.program.start("serve", PREFECT_RUNNER_POLL_FREQUENCY="1")

        def polled() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.program.told()
            found = self.ask("POST", "/deployments/filter", {})  # with those of other tests, which nobody serves now
            return sum((deployment.get("last_polled") or "") > began for deployment in found) >= 10

        until(polled, "deployments that are polled")
        self.start_s = time.monotonic() - started

    def kill(self) -> None:
        """Kill `serve` and every process below it at one moment, as a power cut does."""
        assert self.process is not None
        serve = psutil.Process(self.process.pid)
        serve.suspend()  # it starts no process between the look at its family and its end
        for process in [serve, *self.family()]:
            process.kill()
        self.process.wait()

    def family(self) -> list[psutil.Process]:
        """Every process below `serve`, whatever sessions they made."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request that must succeed."""
        answer = self.api.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def deployment(self, name: str) -> dict[str, Any]:
        return self.ask("GET", f"/deployments/name/{name}/{name}")

    def trigger(self, name: str, **parameters: Any) -> str:
        """Start a run now; its id."""
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return self.ask("POST", f"/deployments/{self.deployment(name)['id']}/create_flow_run", body)["id"]

    def state(self, flow_run: str) -> dict[str, Any]:
        return self.ask("GET", f"/flow_runs/{flow_run}")["state"]

    def ended(self, flow_run: str) -> tuple[str, str]:
        """Type and message of the state that a run ends in."""
        state = until(lambda: (s := self.state(flow_run))["type"] in FINAL and s, f"end of {flow_run}")
        return state["type"], state["message"]

    def runs_of(self, name: str, *types: str) -> list[dict[str, Any]]:
        """Runs of a deployment in some states, oldest first."""
        chosen = {"deployments": {"name": {"any_": [name]}}, "flow_runs": {"state": {"type": {"any_": list(types)}}}}
        return sorted(self.ask("POST", "/flow_runs/filter", chosen), key=lambda run: run["start_time"] or "")

    def says(self, words: str) -> None:
        """Wait until `serve` has printed this; other commands of the program overwrite it."""
        printed = self.program.home / "stdout"
        until(lambda: words in printed.read_text(), f"line {words!r}")

    def listed(self) -> dict[str, dict[str, Any]]:
        """What `gradus runs` lists."""
        return {run["run"]: run for run in self.program.json("runs")["runs"]}


@pytest.fixture(scope="module")
def notified() -> Iterator[tuple[str, list[str]]]:
    """A webhook on loopback: its address, and the texts that it was sent."""
    texts: list[str] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", texts
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def served(new_program: Callable[..., Program], notified: tuple[str, list[str]]) -> Iterator[Served]:
    program = new_program()
    program.settings["GRADUS_NOTIFY_URL"] = notified[0]
    shutil.copy(RECIPE, program.home / "mine.toml")
    (program.home / "slow.py").write_text(SLOW)
    (program.home / "rows.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    server = Served(program, program.settings["PREFECT_API_URL"], program.settings["PREFECT_API_AUTH_STRING"])
    server.start()
    yield server
    server.kill()
    for deployment in server.ask("POST", "/deployments/filter", {}):
        server.ask("DELETE", f"/deployments/{deployment['id']}")
    server.api.close()


def test_wrong_parameters_end_as_failed_with_one_sentence(served: Served) -> None:
    for name in ("ingest", "train"):  # as a schedule, whose parameters Prefect's API does not look at
        path = f"/deployments/{served.deployment(name)['id']}"
        served.ask("PATCH", path, {"enforce_parameter_schema": False})
    correct = "correct the parameters of the run, the schedule or the deployment"
    wrong = {
        served.trigger("ingest", source=5): f"ingest: source: it must be a valid string; {correct}",
        served.trigger("train"): f"train needs recipe; {correct}",
    }
    for flow_run, sentence in wrong.items():
        ended = until(lambda f=flow_run: (s := served.state(f))["type"] == "FAILED" and s, f"failure: {sentence}")
        assert ended["message"].startswith(sentence)
        assert "Traceback" not in ended["message"]
        assert "\n" not in ended["message"]
        served.says(f"{served.ask('GET', f'/flow_runs/{flow_run}')['name']}: failed: {sentence}")
    assert served.listed() == {}


def test_a_training_that_fails_calls_the_webhook_once_with_its_sentence(
    served: Served, notified: tuple[str, list[str]]
) -> None:
    _, texts = notified
    until(lambda: any("train needs recipe" in text for text in texts), "notification of the run without a recipe")
    failed = served.trigger("train", recipe='no "such" recipe.toml')
    until(lambda: any("such" in text for text in texts), "notification")
    name = served.ask("GET", f"/flow_runs/{failed}")["name"]
    (text,) = [text for text in texts if "such" in text]
    assert text == f"{name}: {served.state(failed)['message']}"
    assert 'there is no recipe no "such" recipe.toml' in text
    assert not any("ingest" in text for text in texts)  # a verb that failed is no training


def test_serve_alone_starts_a_server_that_fires_schedules(new_program: Callable[..., Program]) -> None:
    program = new_program(alone=True, apart=True)
    (program.home / "rows.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    make_settings(program.home, program.home / "canary")
    (program.home / "prefect.toml").write_text("[")  # at which Prefect ends: `serve`, or the process of a run
    process = program.start("serve", PREFECT_RUNNER_POLL_FREQUENCY="1")
    try:
        (found,) = until(lambda: served_by(program.home), "server")
        server = Served(program, f"{found.address}/api", secret(program.home))
        with server.api:

            def deployed() -> bool:
                assert process.poll() is None, program.told()
                return answers(server) and len(server.ask("POST", "/deployments/filter", {})) >= 10

            until(deployed, "deployments")
            printed = program.home / "stdout"
            until(lambda: "serving ingest, curate" in printed.read_text(), "what is served")
            said = printed.read_text().splitlines()
            assert said[0] == f"Prefect  {found.address}"
            every = {"active": True, "schedule": {"interval": 15}, "parameters": {"source": "rows.jsonl"}}
            path = f"/deployments/{server.deployment('ingest')['id']}/schedules"
            (made,) = server.ask("POST", path, [every])
            until(lambda: server.runs_of("ingest", "COMPLETED"), "scheduled run")
            server.ask("DELETE", f"{path}/{made['id']}")
        assert not (program.home / "canary").exists()
        beside = program.start("ui", MLFLOW_TRACKING_URI="http://127.0.0.1:9")  # the Prefect server is there already
        try:
            until(lambda: "Ctrl-C stops" in printed.read_text(), "addresses")
        finally:
            beside.terminate()
            beside.wait(300)
        there, _, password, *_ = printed.read_text().splitlines()
        assert [there, password] == said[:2]
    finally:
        process.terminate()
        process.wait(300)


def answers(server: Served) -> bool:
    """Whether the server listens by now."""
    try:
        return server.api.get("/health").is_success
    except httpx.HTTPError:
        return False


def test_a_schedule_fires_fails_and_goes_on_after_its_server_was_killed(served: Served) -> None:
    rows, out = (served.program.home / name for name in ("rows.jsonl", "out.parquet"))
    ingest = served.deployment("ingest")["id"]
    interval = max(10, round(1.5 * served.start_s))  # a run begins about as slowly as `serve` itself
    schedule = {
        "active": True,
        "schedule": {"interval": interval, "anchor_date": datetime.now(UTC).isoformat()},
        "parameters": {"source": "rows.jsonl", "out": str(out)},
    }
    (made,) = served.ask("POST", f"/deployments/{ingest}/schedules", [schedule])
    (first, *_) = until(lambda: served.runs_of("ingest", "COMPLETED"), "scheduled run that completes")
    assert out.is_file()
    of_first = {"flow_runs": {"id": {"any_": [first["id"]]}}}

    def tasks() -> list[tuple[str, str]]:
        return [(each["name"], each["state"]["name"]) for each in served.ask("POST", "/task_runs/filter", of_first)]

    # The states of tasks reach Prefect as events, behind that of the flow.
    until(lambda: tasks() == [("ingest-0", "Completed")], "one task, which completes")
    served.process.kill()
    served.process.wait()
    restarted = datetime.now(UTC).isoformat()
    served.start()
    until(
        lambda: [run for run in served.runs_of("ingest", "COMPLETED") if run["start_time"] > restarted],
        "scheduled run that completes after serve was killed",
    )
    sentence = "rows.jsonl is neither a file nor a folder; a dataset on the hub needs its revision"

    def failed_by_the_file() -> list[dict[str, Any]]:
        # One that ran when the server was killed may have failed as well, by that.
        return [run for run in served.runs_of("ingest", "FAILED") if run["state"]["message"].startswith(sentence)]

    rows.rename(rows.with_suffix(".gone"))
    try:
        until(failed_by_the_file, "scheduled run that fails")
    finally:
        rows.with_suffix(".gone").rename(rows)
    served.ask("DELETE", f"/deployments/{ingest}/schedules/{made['id']}")
    failed = failed_by_the_file()[-1]
    assert failed["auto_scheduled"]
    completed = served.runs_of("ingest", "COMPLETED")
    served.says(f"{completed[-1]['name']}: finished\n")
    served.says(f"{failed['name']}: started\n")
    served.says(f"{failed['name']}: failed: {failed['state']['message']}; see `gradus show {failed['name']}`\n")
    listed = served.listed()
    assert listed[failed["name"]]["status"] == "failed"
    assert listed[failed["name"]]["error"].startswith(sentence)
    assert {listed[run["name"]]["status"] for run in completed} == {"finished"}
    code, out, _ = served.program.run("runs")
    assert code == 0
    assert sentence in " ".join(out.split())


def change_by_hand(served: Served) -> None:
    """Change deployments as a person does in Prefect's pages, from what `serve` makes of them."""
    train, score = served.deployment("train"), served.deployment("score")
    (nightly,) = train["schedules"]
    assert (nightly["slug"], nightly["active"], nightly["parameters"]) == ("nightly", False, {"recipe": "demo"})
    form = train["parameter_openapi_schema"]
    assert list(form["properties"]) == ["recipe", "method", "task", "rounds", "engine", "overlap", "set", "run"]
    assert form["required"] == ["recipe"]
    assert form["properties"]["recipe"]["type"] == "string"
    assert "bundled recipe" in form["properties"]["recipe"]["description"]
    assert all(entry["description"] for entry in form["properties"].values())
    changed = {"active": True, "schedule": {"cron": "30 4 * * *", "timezone": "Europe/Vienna"}}
    served.ask("PATCH", f"/deployments/{train['id']}/schedules/{nightly['id']}", changed)
    served.ask(
        "PATCH", f"/deployments/{train['id']}", {"parameters": {"recipe": "mine.toml"}, "tags": ["gradus", "gpu"]}
    )
    weekly = {
        "active": True,
        "schedule": {"cron": "0 5 * * 0", "timezone": "UTC"},
        "parameters": {"rollouts": "r.jsonl"},
    }
    served.ask("POST", f"/deployments/{score['id']}/schedules", [weekly])  # without a slug, as made in the pages
    served.ask("POST", f"/deployments/{score['id']}/pause_deployment")


def check_what_was_changed(served: Served) -> None:
    """Assert that the deployments are as a person left them."""
    train, score = served.deployment("train"), served.deployment("score")
    (nightly,) = train["schedules"]
    assert nightly["active"]
    assert (nightly["schedule"]["cron"], nightly["schedule"]["timezone"]) == ("30 4 * * *", "Europe/Vienna")
    assert train["parameters"] == {"recipe": "mine.toml"}
    assert train["tags"] == ["gradus", "gpu"]
    assert score["paused"]
    assert [s["schedule"]["cron"] for s in score["schedules"]] == ["0 5 * * 0"]


def cancelled(served: Served, flow_run: str) -> list[psutil.Process]:
    """Cancel a run as Prefect's pages do and see its processes end; those processes.

    Not the reporter's: it stays until MLflow knows how the run ended.
    """
    family = [process for process in served.family() if "gradus.tasks.tracking.reporter" not in process.cmdline()]
    began = time.monotonic()
    served.ask("POST", f"/flow_runs/{flow_run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})
    _, alive = psutil.wait_procs(family, timeout=GONE_S)
    assert not alive, f"after {time.monotonic() - began:.1f} s: {[process.cmdline() for process in alive]}"
    assert served.ended(flow_run)[0] == "CANCELLED"
    return family


def test_serve_that_was_killed_closes_its_runs_and_keeps_changes_and_a_cancelled_run_leaves_nothing(
    served: Served,
) -> None:
    change_by_hand(served)
    given = {"recipe": "mine.toml", "set": ['score.rewards=[{name="slow.py:slow"}]'], "run": "slow"}
    journal = served.program.home / "runs" / "slow"

    def judged(launch: int) -> bool:
        events = list(read_events(journal))
        begun = sum(event["event"] == "run_started" for event in events)
        return begun == launch and (events[-1]["event"], events[-1].get("stage")) == ("stage_started", "score")

    first = served.trigger("train", **given)
    until(lambda: judged(1), "reward that is slow")
    unbegun = served.trigger("ingest", source="rows.jsonl")
    until(lambda: served.state(unbegun)["type"] == "PENDING", "run that is taken")
    served.kill()
    assert {served.state(first)["type"], served.state(unbegun)["type"]} == {"RUNNING", "PENDING"}
    assert served.listed()["slow"]["status"] == "killed"
    served.program.reports = True
    served.start()
    check_what_was_changed(served)
    names = [automation["name"] for automation in served.ask("POST", "/automations/filter", {})]
    assert sorted(names) == ["gradus: a training failed", "gradus: a training was killed"]
    assert served.ended(first) == ("CRASHED", "the process was killed; run the same command again to resume")
    assert served.ended(unbegun) == ("CRASHED", "the process was killed before the run began; start it again")

    second = served.trigger("train", **given)
    until(lambda: judged(2), "reward that is slow, again")
    time.sleep(1)  # the judges, which are below the worker, are up
    assert len(cancelled(served, second)) >= 2  # the flow, the worker
    served.says("slow: started\n")
    served.says("slow: cancelled\n")
    assert served.listed()["slow"]["status"] == "cancelled"
    *_, attempt, run = read_events(journal)
    assert (attempt["status"], run["status"]) == ("cancelled", "cancelled")
    assert attempt["error"] == "cancelled in Prefect; run the same command again to resume"
    assert set(served.program.mlflow_states(second)) <= {"KILLED", "FINISHED"}
    assert "KILLED" in served.program.mlflow_states(second)
