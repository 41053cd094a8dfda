"""The place itself: real servers, a deployment that is triggered, what the machine can do, telling MLflow later."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from gradus.tasks.servers.secret import secret

Program = Any

TRIGGER = """
import json, sys
from prefect.deployments import run_deployment
run = run_deployment("ingest/ingest", parameters=json.loads(sys.argv[1]), timeout=360, poll_interval=0.5)
print(json.dumps([run.state.type.value, str(run.id)]))
"""


@contextmanager
def running(process: "subprocess.Popen[bytes]") -> Generator["subprocess.Popen[bytes]"]:
    """End a program as Ctrl-C does, for certain."""
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(found: Callable[[], Any], what: str, limit_s: float = 360) -> Any:
    deadline = time.monotonic() + limit_s
    while not (result := found()):
        assert time.monotonic() < deadline, f"no {what} within {limit_s} s"
        time.sleep(0.2)
    return result


def addresses(program: Program) -> dict[str, str]:
    lines = [line.split() for line in (program.home / "stdout").read_text().splitlines()]
    return {words[0]: words[1] for words in lines if len(words) == 2 and words[1].startswith("http://127.0.0.1:")}


def test_a_deployment_triggered_through_a_real_server_runs_its_stage(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    servers, server = new_program(alone=True), new_program(alone=True)
    rows = tmp_path / "mine.jsonl"
    rows.write_text('{"question": "1 + 1 =", "answer": "2"}\n{"question": "no gold"}\n')
    with running(servers.start("ui", "--prefect-port", "4310", "--mlflow-port", "5310")):
        until(lambda: len(addresses(servers)) == 2, "addresses")
        api = addresses(servers)["Prefect"] + "/api"
        key = secret(servers.home)
        reach = {"PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": key}
        client = httpx.Client(headers={"Authorization": f"Basic {base64.b64encode(key.encode()).decode()}"})
        with running(server.start("serve", **reach)), client:
            deployed = until(lambda: names(client, api) >= {"train", "score", "ingest", "evaluate"}, "deployments")
            assert deployed
            out = tmp_path / "problems.parquet"
            given = f'{{"source": "{rows}", "out": "{out}"}}'
            done = subprocess.run(
                [sys.executable, "-c", TRIGGER, given],
                env=server.environment(**reach),
                capture_output=True,
                text=True,
                check=True,
            )
            state, flow_run = json.loads(done.stdout.splitlines()[-1])
            assert state == "COMPLETED"
            assert out.is_file()
            train = client.get(f"{api}/deployments/name/train/train").json()
            assert [schedule["active"] for schedule in train["schedules"]] == [False]
            tasks = client.post(f"{api}/task_runs/filter", json={"flow_runs": {"id": {"any_": [flow_run]}}}).json()
            assert [(t["name"], t["state"]["name"]) for t in tasks] == [("ingest-0", "Completed")]


def names(client: httpx.Client, api: str) -> set[str]:
    return {found["name"] for found in client.post(f"{api}/deployments/filter", json={}).json()}


def test_what_could_not_be_told_is_told_later(new_program: Callable[..., Program], tmp_path: Path) -> None:
    program = new_program(reports=True)
    rows = tmp_path / "mine.jsonl"
    rows.write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    code, out, err = program.run("ingest", str(rows), "--json", MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert code == 0, err
    assert '"rows": 1' in out
    run = program.json("runs")["runs"][0]["run"]
    assert f"gradus sync {run}" in err
    code, out, err = program.run("sync", run)
    assert (code, err) == (0, "")
    assert "events sent" in out
    assert program.mlflow_states(program.launches()[0]) == ["FINISHED", "FINISHED"]


def test_a_run_without_a_reporter_is_reported_when_it_is_wanted(new_program: Callable[..., Program]) -> None:
    program = new_program()
    (program.home / "mine.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    code, _, err = program.run("ingest", "mine.jsonl", "--json", GRADUS_REPORT="never")
    assert code == 2
    assert "GRADUS_REPORT is 'never'; set it to now or later" in err
    assert not (program.home / "runs").exists()
    program.json("ingest", "mine.jsonl")
    run = program.json("runs")["runs"][0]["run"]
    assert not (program.home / "runs" / run / "logs" / "tracking.log").exists()
    assert program.run("sync", run)[0] == 0
    assert program.mlflow_states(program.launches()[0]) == ["FINISHED", "FINISHED"]


def test_doctor_and_methods_say_what_there_is(new_program: Callable[..., Program]) -> None:
    program = new_program()
    checks = program.json("doctor")["checks"]
    assert {"torch", "GPU", "vLLM"} <= {check["name"].split(" ")[0] for check in checks}
    assert all(check["cure"] for check in checks if not check["ok"])
    found = program.json("methods")
    assert {"grpo", "dr_grpo", "rloo"} <= set(found["advantage"])
