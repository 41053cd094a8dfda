"""`gradus lab` through the real program: gradients of stored rounds counted a second way, ways out, survivors."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import gradus
from gradus.data.errors import UsageError
from gradus.flows.laboratory.asked import LabAsked
from gradus.flows.laboratory.ready import lab_ready
from gradus.tasks.config.settings import Home
from gradus.tasks.tracking.facts import LABORATORY, LABORATORY_PICTURE, LABORATORY_TABLE
from tests.e2e.conftest import RECIPE, Program

METHODS = ("dr_grpo", "gspo", "kdrl", "vade")
SMALL = ("rounds=3", "curate.draw=8", "curate.sample.max_tokens=40", "evaluate.every=1", "update.minibatch_groups=4")
OWN = """
from gradus.components import component

@component("loss", takes=("advantage",), needs=("now.logp", "advantage"), needs_sampler=False)
def halved(rows):
    return -0.5 * rows["advantage"] * rows["now.logp"], {}
"""


@pytest.fixture(scope="module")
def stored(new_program: Callable[..., Program]) -> tuple[Program, dict[str, Any]]:
    """A training of three rounds, and the laboratory of its first and last."""
    program = new_program(warm=True)
    words = [word for text in SMALL for word in ("--set", text)]
    program.json("train", str(RECIPE), *words, "--run", "base")
    (program.home / "halved.py").write_text(OWN)
    (program.home / "mine.toml").write_text('what = "half"\n[update]\nloss = "halved.py:halved"\n')
    named = [word for name in (*METHODS, "mine.toml") for word in ("--method", name)]
    return program, program.json("lab", "base", *named, "--rounds", "2")


def cells(found: dict[str, Any], method: str) -> list[dict[str, Any]]:
    return [cell for cell in found["cells"] if cell["method"] == method]


def vector(program: Program, cell: dict[str, Any]) -> Any:
    halves = load_file(program.home / "lake" / cell["artifact"] / "halves.safetensors")
    return halves["first"].astype(float) + halves["second"]


def test_each_method_has_a_cell_for_each_round_and_age(stored: tuple[Program, dict[str, Any]]) -> None:
    _, found = stored
    places = [(1, 0), (1, 1), (3, 0), (3, 1)]
    for method in ("none", "dr_grpo", "gspo", "vade", "mine"):
        assert [(cell["round"], cell["age"]) for cell in cells(found, method)] == places
    (failed,) = found["failed"]
    assert (failed["method"], "teacher" in failed["reason"]) == ("kdrl", True)
    assert found["methods"][0]["method"] == "none"
    (vade,) = [each for each in found["methods"] if each["method"] == "vade"]
    assert vade["same_as"] == "none"  # it chooses problems
    assert any(remark.startswith("vade: its ") for remark in found["remarks"])


def test_cosines_are_those_of_the_stored_gradients(stored: tuple[Program, dict[str, Any]]) -> None:
    program, found = stored
    names = [each["method"] for each in found["methods"]]
    for method in ("dr_grpo", "gspo"):
        pairs = zip(cells(found, "none"), cells(found, method), strict=True)
        vectors = [(vector(program, one), vector(program, other)) for one, other in pairs]
        sizes = [np.linalg.norm(one) * np.linalg.norm(other) for one, other in vectors]
        assert max(sizes) > 0
        each = [one @ other / size for (one, other), size in zip(vectors, sizes, strict=True) if size]
        assert found["cosines"][0][names.index(method)] == pytest.approx(np.mean(each), abs=1e-6)
        for cell, (_, other) in zip(cells(found, method), vectors, strict=True):
            assert cell["metrics"]["gradient/norm"] == pytest.approx(np.linalg.norm(other), rel=1e-5)


def test_the_pull_on_each_rollout_is_that_of_the_paper(stored: tuple[Program, dict[str, Any]]) -> None:
    """On-policy the clipped surrogate pulls at each token by A / M; Dr. GRPO by (r - mean) / (N max_tokens)."""
    program, found = stored
    for method in ("none", "dr_grpo", "mine"):
        (cell, *_) = cells(found, method)
        rows = {row["rollout_id"]: row for row in program.rows(cell["artifact"])}
        rollouts = [
            row for folder in program.outputs("base", "rollout") for row in program.rows(f"rollouts/{folder.name}")
        ]
        taken = [row for row in rollouts if row["rollout_id"] in rows]
        lengths = np.array([len(row["completion_tokens"]) for row in taken])
        reward = np.array([rows[row["rollout_id"]]["reward"] for row in taken])
        groups = np.array([row["group_id"] for row in taken])
        above, spread = reward.copy(), np.zeros(len(taken))
        for group in set(groups):
            inside = groups == group
            above[inside] -= reward[inside].mean()
            spread[inside] = reward[inside].std(ddof=1)
        grpo = above / (spread + 1e-4) * lengths / lengths.sum()
        wanted = {"none": grpo, "mine": grpo / 2, "dr_grpo": above * lengths / (len(taken) * 40)}[method]
        pulls = np.array([rows[row["rollout_id"]]["pull"] for row in taken])
        assert np.abs(pulls - wanted).max() < 1e-6
        assert np.abs(wanted).max() > 1e-4
        dead = sum(reward[groups == group].std() == 0 for group in set(groups)) / len(set(groups))
        assert cell["metrics"]["gradient/dead_groups_frac"] == pytest.approx(dead)


def test_held_out_rows_are_those_of_the_evaluation_by_the_same_policy(stored: tuple[Program, dict[str, Any]]) -> None:
    program, found = stored
    (cell, *_) = cells(found, "gspo")
    manifest = json.loads((program.home / "lake" / cell["artifact"] / "_manifest.json").read_text())
    (held,) = manifest["parents"]["held_rollouts"]
    (evaluated,) = {
        event["output"]
        for event in program.events("base")
        if event["event"] == "stage_started"
        and (event["stage"], event["round"], event["purpose"]) == ("rollout", 0, "eval")
    }
    assert held == evaluated
    assert {"gradient/held_out_gain", "gradient/held_out_right", "gradient/held_out_wrong"} <= cell["metrics"].keys()


def test_the_same_command_computes_nothing_again(stored: tuple[Program, dict[str, Any]]) -> None:
    program, found = stored
    named = [word for name in (*METHODS, "mine.toml") for word in ("--method", name)]
    before = program.manifests()
    again = program.json("lab", "base", *named, "--rounds", "2")
    assert program.manifests() == before
    assert [cell["artifact"] for cell in again["cells"]] == [cell["artifact"] for cell in found["cells"]]
    code, out, _ = program.run("lab", "base", *named, "--rounds", "2", COLUMNS="160")
    assert code == 0
    assert "kdrl is left out: " in out
    assert "clipped, age 1" in out
    (folder,) = (program.home / "runs").glob("lab-*")
    assert json.loads((folder / LABORATORY).read_text())["cosines"] == again["cosines"]
    table = json.loads((folder / LABORATORY_TABLE).read_text())
    assert [row[0] for row in table["data"]] == [each["method"] for each in again["methods"]]
    assert (folder / LABORATORY_PICTURE).read_bytes().startswith(b"\x89PNG")


def test_sql_has_the_gradients(stored: tuple[Program, dict[str, Any]]) -> None:
    program, found = stored
    told = program.json("sql", "select count(*) as n, count(distinct artifact) as cells from gradients")
    distinct = {cell["artifact"] for cell in found["cells"]}
    rows = sum(len(program.rows(artifact)) for artifact in distinct)
    assert told["rows"] == [[rows, len(distinct)]]


def test_survivors_are_trained_and_halved(
    stored: tuple[Program, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = stored
    words = ("--method", "vade", "--method", "mine.toml", "--rounds", "1", "--ages", "0", "--seeds", "1")
    found = program.json("lab", "base", *words, "--then", "compare", "--budget", "rounds=4")
    compared = [[each["method"] for each in comparison["methods"]] for comparison in found["comparisons"]]
    assert compared == [["base", "base+mine"]] * 3  # the objective of vade is the run's own
    assert [max(each["methods"][0]["rounds"]) for each in found["comparisons"]] == [1, 2, 4]
    assert found["comparisons"][-1]["differences"][0]["verdict"] in ("better", "worse", "equivalent", "undecided")


def test_what_cannot_begin_is_refused(stored: tuple[Program, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = stored
    monkeypatch.setenv("GRADUS_HOME", str(program.home))
    with pytest.raises(UsageError, match="there is no method gspoo"):
        gradus.lab(["base"], method=["gspoo"])
    ready = lab_ready(Home.from_environment(), LabAsked(["base"], method=["gspo"], rounds=2, ages="0,2"))
    assert [text.partition(" is there")[0] for text in ready.remarks] == ["base: no policy 2 updates after round 3"]
    code, _, told = program.run("lab", "base", "--method", "gspo", "--ages", "soon")
    assert (code, "--ages 'soon': these are no ages" in told) == (2, True)
    code, _, told = program.run("lab", "base", "--method", "gspo", "--then", "compare")
    assert (code, "--then compare needs a budget" in told) == (2, True)
