"""`gradus compare` through the real program: equal budgets, shared stages once, tokens counted a second way."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from gradus.tasks.tracking.facts import COMPARISON, COMPARISON_PICTURE
from tests.e2e.conftest import RECIPE, Program

HINTS = ("--set", "escalate=[2]", "--set", "escalate=[]")
QUICK = ("--set", "evaluate.problems='few.jsonl'", "--set", "curate.draw=4", "--set", "ingest.limit=12")

BUDGET = ("--seeds", "2", "--budget", "tokens=700")


@pytest.fixture(scope="module")
def compared(new_program: Callable[..., Program]) -> tuple[Program, dict[str, Any]]:
    """Hints on and off, two seeds, until 700 tokens were sampled."""
    program = new_program()
    lines = (program.home / "heldout.jsonl").read_text().splitlines()[::4]
    (program.home / "few.jsonl").write_text("\n".join(lines) + "\n")
    return program, program.json("compare", str(RECIPE), *HINTS, *QUICK, *BUDGET, "--plot", "found.png")


def calls(program: Program, run: str) -> list[dict[str, Any]]:
    """The stages of a run's first command, with their artifacts."""
    lines = (program.home / "runs" / run / "events.jsonl").read_text().splitlines()
    first = itertools.takewhile(lambda event: event["event"] != "run_finished", map(json.loads, lines))
    return [event for event in first if event["event"] in ("stage_started", "stage_reused")]


def parquet(program: Program, output: str, column: str) -> list[Any]:
    files = sorted((program.home / "lake" / output).glob("part-*.parquet"))
    return [value for file in files for value in pq.read_table(file, columns=[column]).column(column).to_pylist()]


def test_the_answer_has_each_method_each_seed_and_one_difference(compared: tuple[Program, dict[str, Any]]) -> None:
    _, found = compared
    assert [m["method"] for m in found["methods"]] == ["tiny escalate=[2]", "tiny escalate=[]"]
    assert [m["seeds"] for m in found["methods"]] == [[3, 4], [3, 4]]
    assert len({run for m in found["methods"] for run in m["runs"]}) == 4
    (difference,) = found["differences"]
    assert (difference["method"], difference["than"]) == ("tiny escalate=[]", "tiny escalate=[2]")
    interval = difference["difference"]
    assert difference["differs"] is (interval["low"] > 0 or interval["high"] < 0)
    assert any("tokens over it" in remark for remark in found["remarks"])


def test_a_training_ends_after_the_round_that_reaches_the_budget(compared: tuple[Program, dict[str, Any]]) -> None:
    program, found = compared
    for method in found["methods"]:
        counted = []
        for run, rounds in zip(method["runs"], method["rounds"], strict=True):
            by_round = np.zeros(rounds + 1, dtype=int)
            for call in calls(program, run):
                if call["stage"] == "rollout" and not call["purpose"].startswith("eval"):
                    by_round[call["round"]] += sum(map(len, parquet(program, call["output"], "completion_tokens")))
            assert by_round.sum() >= 700
            assert by_round[:-1].sum() < 700
            counted.append(by_round.sum())
        assert method["tokens"] == pytest.approx(np.mean(counted))
        assert method["tokens"] == pytest.approx(
            sum(cost["tokens"] for stage, cost in method["stages"].items() if stage != "evaluation")
        )


def test_figures_are_those_of_the_evaluations(compared: tuple[Program, dict[str, Any]]) -> None:
    program, found = compared
    rates = []
    for method in found["methods"]:
        means = []
        for run, rounds in zip(method["runs"], method["rounds"], strict=True):
            (output,) = [
                call["output"] for call in calls(program, run) if (call["stage"], call["round"]) == ("evaluate", rounds)
            ]
            k, n = (np.array(parquet(program, output, name)) for name in ("k", "n"))
            means.append((k / n).mean())
        rates.append(np.mean(means))
        assert method["after"]["value"] == pytest.approx(np.mean(means))
        assert method["gain"]["value"] == pytest.approx(np.mean(means) - method["before"]["value"])
    assert found["differences"][0]["difference"]["value"] == pytest.approx(rates[1] - rates[0])
    assert sum(band["problems"] for band in found["by_difficulty"]) == found["problems"]


def test_what_methods_share_is_computed_once(compared: tuple[Program, dict[str, Any]]) -> None:
    program, found = compared
    runs = [run for method in found["methods"] for run in method["runs"]]
    begun = [call for run in runs for call in calls(program, run) if call["event"] == "stage_started"]
    assert len({call["output"] for call in begun}) == len(begun)  # nothing twice
    ingests = [call["output"] for call in begun if call["stage"] == "ingest"]
    assert len(ingests) == len(list((program.home / "lake" / "problems").iterdir())) == 2
    first = [c for run in runs for c in calls(program, run) if (c["stage"], c["round"]) == ("evaluate", 0)]
    assert [c["event"] for c in first] == ["stage_started", "stage_reused", "stage_reused", "stage_reused"]
    profiles = [c for c in begun if (c["stage"], c["purpose"]) == ("rollout", "profile")]
    assert len(profiles) == 2  # one a seed, not one a training


def test_the_same_comparison_computes_nothing_and_the_runs_alone_say_the_same(
    compared: tuple[Program, dict[str, Any]],
) -> None:
    program, found = compared
    before = program.manifests()
    program.json("compare", str(RECIPE), *HINTS, *QUICK, *BUDGET, "--seeds", "1")  # the last option counts
    assert program.manifests() == before
    runs = [run for method in found["methods"] for run in method["runs"]]
    again = program.json("compare", *runs)
    assert again["differences"][0]["difference"] == found["differences"][0]["difference"]
    for name in ("tokens", "seconds", "stages", "rounds", "after", "curve"):  # those of stages that were reused, too
        assert [m[name] for m in again["methods"]] == [m[name] for m in found["methods"]], name
    code, out, err = program.run("compare", *runs)
    assert code == 0, err
    assert "no difference is shown" in out or "better than" in out or "worse than" in out


def test_the_plot_is_a_picture_and_prefect_has_a_flow_with_a_sub_flow_for_each_training(
    compared: tuple[Program, dict[str, Any]],
) -> None:
    program, found = compared
    assert (program.home / "found.png").read_bytes().startswith(b"\x89PNG")
    children = [
        program.prefect(
            "select parent.flow_run_id from flow_run join task_run parent on parent.id = flow_run.parent_task_run_id "
            "where flow_run.name = ?",
            run,
        )
        for method in found["methods"]
        for run in method["runs"]
    ]
    assert len({rows[0] for rows in children}) == 1  # of the first command


def test_a_comparison_is_a_run_of_its_own_with_its_tables_and_its_picture(
    compared: tuple[Program, dict[str, Any]],
) -> None:
    program, found = compared
    by_seeds = {len(json.loads(path.read_text())["methods"][0]["runs"]): path.parent for path in kept(program)}
    assert json.loads((by_seeds[2] / COMPARISON).read_text()) == found
    assert (by_seeds[2] / COMPARISON_PICTURE).read_bytes().startswith(b"\x89PNG")
    listed = {run["run"]: run for run in program.json("runs")["runs"]}
    assert (listed[by_seeds[2].name]["verb"], listed[by_seeds[2].name]["status"]) == ("compare", "finished")


def kept(program: Program) -> list[Path]:
    return list((program.home / "runs").glob(f"compare-*/{COMPARISON}"))


def test_a_dry_run_under_a_budget_of_tokens_foresees_the_first_rounds_and_says_so(
    compared: tuple[Program, dict[str, Any]],
) -> None:
    program, found = compared
    before = program.manifests()
    ahead = program.json("compare", str(RECIPE), *HINTS, *QUICK, *BUDGET, "--dry-run")
    assert program.manifests() == before
    assert sorted(each["run"] for each in ahead["trainings"]) == sorted(r for m in found["methods"] for r in m["runs"])
    assert all(each["reused"] > 3 for each in ahead["trainings"])
    assert any(
        "the first rounds alone" in remark and "the lengths of completions" in remark for remark in ahead["remarks"]
    )


def test_evaluations_of_other_problems_are_refused(compared: tuple[Program, dict[str, Any]]) -> None:
    program, found = compared
    own = Path(program.home / "other.toml")
    shutil.copyfile(RECIPE, own)
    text = own.read_text().replace("heldout.jsonl", "train.jsonl").replace('name = "tiny"', 'name = "other"')
    own.write_text(text)
    code, _, err = program.run("compare", str(RECIPE), "other.toml", "--budget", "rounds=1")
    assert code == 2
    assert "evaluated in different ways: evaluate.problems" in err
    code, _, err = program.run("compare", found["methods"][0]["runs"][0])
    assert code == 2
    assert "at least two methods" in err
