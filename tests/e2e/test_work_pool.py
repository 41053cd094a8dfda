"""deploy/prefect.yaml: every flow as a deployment of a work pool, and a training that a real worker runs."""

import shutil
import subprocess
import sys
from collections.abc import Callable

import yaml

from gradus.flows.serve import deployments
from tests.e2e.conftest import RECIPE, ROOT, Program
from tests.e2e.test_serve import Served, until

FILE = ROOT / "deploy" / "prefect.yaml"
PREFECT = [sys.executable, "-m", "prefect", "--no-prompt"]


def test_the_pool_has_the_deployments_that_serve_has() -> None:
    served = {each.name: each.entrypoint for each in deployments()}
    listed = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    assert {each["name"]: each["entrypoint"] for each in listed} == served
    assert {each["work_pool"]["name"] for each in listed} == {"gradus"}


def prefect(program: Program, *arguments: str) -> None:
    """Run Prefect's own program as a user of this home does; it must succeed."""
    command = [*PREFECT, *arguments]
    done = subprocess.run(
        command,
        check=False,
        env=program.environment(PWD=str(program.home)),
        cwd=program.home,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_worker_of_a_process_pool_runs_a_training(new_program: Callable[..., Program]) -> None:
    program = new_program()
    shutil.copy(RECIPE, program.home / "mine.toml")
    served = Served(program, program.settings["PREFECT_API_URL"], program.settings["PREFECT_API_AUTH_STRING"])
    prefect(program, "work-pool", "create", "--type", "process", "gradus", "--overwrite")
    prefect(program, "deploy", "--all", "--prefect-file", str(FILE))
    try:
        train = served.deployment("train")
        assert (train["work_pool_name"], train["tags"]) == ("gradus", ["gradus"])
        form = train["parameter_openapi_schema"]["properties"]
        assert all(entry["description"] for entry in form.values())
        assert form["engine"]["anyOf"][0]["enum"] == ["transformers", "vllm", "openai"]
        (nightly,) = train["schedules"]
        assert (nightly["slug"], nightly["active"], nightly["parameters"]) == ("nightly", False, {"recipe": "demo"})
        good = served.trigger("train", recipe="mine.toml", rounds=1, run="pooled")
        prefect(program, "worker", "start", "--pool", "gradus", "--run-once")
        assert served.ended(good)[0] == "COMPLETED", served.state(good)
        lines = until(lambda: logged(served, good), "lines of the run's log")
        assert any(line.startswith("update") for line in lines), lines
        assert served.listed()["pooled"]["status"] == "finished"
        assert list((program.home / "lake" / "checkpoints").glob("*/_manifest.json"))
    finally:
        for deployment in served.ask("POST", "/deployments/filter", {}):
            served.ask("DELETE", f"/deployments/{deployment['id']}")
        served.ask("DELETE", "/work_pools/gradus")
        served.api.close()


def logged(served: Served, flow_run: str) -> list[str]:
    """The log lines that Prefect's page shows of a run."""
    chosen = {"logs": {"flow_run_id": {"any_": [flow_run]}}}
    return [line["message"] for line in served.ask("POST", "/logs/filter", chosen)]
