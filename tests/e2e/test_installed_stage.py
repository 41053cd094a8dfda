"""A stage of an installed package, tests/packages/echo: a verb, a deployment, a section of a recipe, a table.

Installed by its folder on the path alone; nothing of Gradus names it.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, Program

PACKAGE = ROOT / "tests" / "packages" / "echo"
RECIPE = """
name = "echoed"
rounds = 2
problems = "train.jsonl"
escalate = []
curate = { draw = 4, sample = { n = 2, max_tokens = 24 } }
score = { rewards = [{ name = "numeric" }] }
evaluate = { problems = "heldout.jsonl", sample = { n = 1, max_tokens = 24 }, report = { ks = [1] } }

[update]
max_zero_std_frac = 1.0

[echo]
times = 2

[[overrides]]
stage = "echo"
round = 2
changes = { loud = true }
"""
CALL = """
import inspect, sys, gradus
made = gradus.echo(sys.argv[1], times=3)
print(*inspect.signature(gradus.echo).parameters, made.summary["reused"], made)
try:
    gradus.echo(sys.argv[1], set={"tims": 3})
except gradus.GradusError as error:
    print(f"echo: {error}")
"""
FORM = """
import json
from gradus.flows.serve import deployments
echo = next(each for each in deployments() if each.name == "echo")
print(json.dumps([echo.entrypoint, sorted(echo._parameter_openapi_schema.properties)]))
"""


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    made = new_program(warm=True)  # `Program.run` below is a process of its own
    made.module_path = os.pathsep.join([str(PACKAGE), made.module_path])
    for name in ("train", "heldout"):
        file = made.home / f"{name}.jsonl"
        file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:12]))
    (made.home / "mine.toml").write_text(RECIPE)
    return made


def refusal(program: Program, *arguments: str) -> str:
    code, _, said = program.run(*arguments)
    assert code
    return said


def test_a_training_runs_it_after_each_round_and_every_verb_knows_it(program: Program) -> None:
    run = program.json("train", "mine.toml")["run"]
    first, second = (
        json.loads((folder / "_manifest.json").read_text())["config"] for folder in program.outputs(run, "echo")
    )
    assert (first, second) == ({"times": 2, "loud": False}, {"times": 2, "loud": True})
    found = program.json("sql", "select count(*), max(length(text)) > 0 from echoes")["rows"]
    assert found == [[16, True]]
    why = program.json("why", run, "echo")["calls"]
    assert [(call["round"], call["status"]) for call in why] == [(1, "finished"), (2, "finished")]
    again = program.json("rerun", run, "echo", "--round", "1", "--set", "times=3")["run"]
    assert again != run
    assert [call["status"] for call in program.json("why", again, "echo")["calls"]] == ["finished", "reused"]
    assert program.json("why", again, "update")["calls"][0]["status"] == "reused"


def test_it_is_a_verb_with_its_options_and_a_deployment_with_its_form(program: Program) -> None:
    plan = program.json("curate", "--problems", "train.jsonl", "--draw", "2", "--set", "sample.n=1")["artifact"]
    rollouts = program.json("rollout", "--plan", plan, "--problems", "train.jsonl")["artifact"]
    made = program.json("echo", "--rollouts", rollouts, "--times", "3")
    assert (made["rows"], made["artifact"].partition("/")[0]) == (2, "echoes")
    assert program.json("echo", "--rollouts", rollouts, "--set", "times=3")["reused"]
    assert "echo" in Program.run(program, "--help")[1]
    command, program.command = program.command, [program.command[0], "-c", CALL, rollouts]
    try:
        assert Program.run(program)[1].splitlines() == [
            f"rollouts times set out True {made['artifact']}",
            "echo: there is no setting tims; did you mean times?",
        ]
        program.command = [command[0], "-c", FORM]
        assert json.loads(Program.run(program)[1]) == ["gradus.flows.stages.echo", ["config", "out", "rollouts"]]
    finally:
        program.command = command


def test_its_settings_and_its_own_check_refuse_before_anything_starts(program: Program) -> None:
    assert "echo: there is no setting time; did you mean times?" in refusal(
        program, "train", "mine.toml", "--set", "echo.time=3"
    )
    assert "echo.times = 10 is more than nine" in refusal(program, "train", "mine.toml", "--set", "echo.times=10")
    assert "--times" in refusal(program, "echo", "--rollouts", "nowhere.jsonl", "--times", "0")
    listed = json.loads(program.run("methods", "--json")[1])
    assert "times" in json.dumps(listed)


def test_a_broken_package_is_named_and_others_go_on_without_it(program: Program, tmp_path: Path) -> None:
    about = tmp_path / "bad_stage-2.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-stage\nVersion: 2.0\n")
    (about / "entry_points.txt").write_text("[gradus.stages]\nbad = nowhere:BAD\n")
    path = os.pathsep.join([str(tmp_path), program.module_path])
    code, _, said = Program.run(program, "bad", "--help", PYTHONPATH=path)
    assert code == 1
    assert said.startswith("gradus: the package bad-stage is broken: its stage bad cannot be read: No module named")
    assert Program.run(program, "echo", "--help", PYTHONPATH=path)[0] == 0
