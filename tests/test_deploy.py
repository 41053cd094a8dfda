"""The files of deploy/: read and checked against the program; no container is started."""

import importlib.metadata
import json
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.settings import Settings
from typer.core import TyperGroup
from typer.main import get_command

from gradus.flows.cli.main import app
from gradus.tasks.config.learning import LaunchConfig

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]


def test_commands_are_verbs_and_ports_are_on_loopback_alone(services: dict[str, Any]) -> None:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    assert set(services["gradus"]["command"]) <= set(group.commands)
    for name, service in services.items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
    programs = {service["entrypoint"][0] for service in services.values() if "entrypoint" in service}
    scripts = {each.name for each in importlib.metadata.entry_points(group="console_scripts")}
    assert programs <= scripts


def test_prefect_knows_its_settings(services: dict[str, Any]) -> None:
    known = set(re.findall(r"PREFECT_[A-Z0-9_]+", json.dumps(Settings.model_json_schema())))
    given = {key for service in services.values() for key in service.get("environment", {})}
    assert {key for key in given if key.startswith("PREFECT_")} <= known
    assert {key for key in given if key.startswith("GRADUS_")} == {"GRADUS_NOTIFY_URL"}


def test_what_the_image_is_built_from_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)
    built = re.findall(r"EXTRAS=([\w,]+)", text + (ROOT / "docs" / "containers.md").read_text(encoding="utf-8"))
    provided = set(importlib.metadata.metadata("gradus").get_all("Provides-Extra") or [])
    assert {extra for each in [extras, *built] for extra in each.split(",")} <= provided
    (entry,) = [line for line in text.splitlines() if line.startswith("ENTRYPOINT")]
    assert shlex.split(entry.split(maxsplit=1)[1].strip("[]")) == ["gradus"]


def commands(text: str) -> list[list[str]]:
    """The words of every command of ours in a script."""
    lines = [line.strip().removeprefix("exec ") for line in text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("gradus ")]


@pytest.mark.parametrize("name", ["slurm.sh", "kubernetes.yaml"])
def test_several_hosts_train_a_recipe_that_is_there_and_join_it(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    if name.endswith(".yaml"):
        service, job = yaml.safe_load_all(text)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        (script,) = container["args"]
        hosts = job["spec"]["completions"]
        assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    else:
        subprocess.run(["bash", "-n", DEPLOY / name], check=True)
        (script,) = re.findall(r"bash -c '(.*?)'", text, re.DOTALL)
        hosts = int(re.findall(r"^#SBATCH --nodes=(\d+)$", text, re.MULTILINE)[0])
        assert re.findall(r"^#SBATCH --gpus-per-node=(\d+)$", text, re.MULTILINE) == ["8"]
    train, join = commands(script)
    assert (train[0], join[0], join[1]) == ("train", "join", train[train.index("--run") + 1])
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    for command in (train, join):
        verb = group.commands[command[0]]
        known = {option for each in verb.params for option in each.opts}
        assert {word for word in command if word.startswith("--")} <= known
    changes = dict(command.split("=", 1) for command in train if "=" in command)
    body = tomllib.loads((ROOT / "recipes" / f"{train[1]}.toml").read_text(encoding="utf-8"))
    given = {key.rpartition(".")[2]: value for key, value in changes.items()}
    launch = LaunchConfig.model_validate({**body["update"]["launch"], **given, "rendezvous": "host:29400"})
    assert (launch.hosts, launch.processes) == (hosts, 8)
    assert given["rendezvous"].endswith(":29400")
