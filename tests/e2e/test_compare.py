"""`gradus compare` through the real program: equal budgets, shared stages once, tokens counted a second way."""

import itertools
import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradus
from gradus.data.errors import BadInputError
from gradus.flows.console.study_tables import render_comparison
from gradus.flows.loop.comparing.budget import Asked
from gradus.flows.loop.comparing.compared import compared_runs, verify_comparison
from gradus.flows.loop.comparing.methods import checked
from gradus.flows.loop.comparing.plan import read_plan
from gradus.flows.loop.dry_run import look_ahead_comparison
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.figures import plot
from gradus.tasks.inspect.comparing.report import Terms
from gradus.tasks.tracking.facts import COMPARISON, COMPARISON_PICTURE, PLAN
from tests.e2e.conftest import RECIPE, Program

HINTS = ("--set", "escalate=[2]", "--set", "escalate=[]")
QUICK = ("--set", "evaluate.problems='few.jsonl'", "--set", "curate.draw=8", "--set", "ingest.limit=12")

BUDGET = ("--seeds", "2", "--budget", "tokens=1400")


@pytest.fixture(scope="module")
def compared(new_program: Callable[..., Program]) -> tuple[Program, dict[str, Any]]:
    """Hints on and off, two seeds, until 1,400 tokens were sampled."""
    program = new_program(warm=True)
    lines = (program.home / "heldout.jsonl").read_text().splitlines()[::4]
    (program.home / "few.jsonl").write_text("\n".join(lines) + "\n")
    return program, program.json("compare", str(RECIPE), *HINTS, *QUICK, *BUDGET, "--plot", "found.png")


def calls(program: Program, run: str) -> list[dict[str, Any]]:
    """The stages of a run's first command, with their artifacts."""
    first = itertools.takewhile(lambda event: event["event"] != "run_finished", program.events(run))
    return [event for event in first if event["event"] in ("stage_started", "stage_reused")]


def parquet(program: Program, output: str, column: str) -> list[Any]:
    return [row[column] for row in program.rows(output)]


def test_the_answer_has_each_method_each_seed_and_one_difference(compared: tuple[Program, dict[str, Any]]) -> None:
    _, found = compared
    assert [m["method"] for m in found["methods"]] == ["tiny escalate=[2]", "tiny escalate=[]"]
    assert [m["seeds"] for m in found["methods"]] == [[3, 4], [3, 4]]
    assert len({run for m in found["methods"] for run in m["runs"]}) == 4
    (difference,) = found["differences"]
    assert (difference["method"], difference["than"]) == ("tiny escalate=[]", "tiny escalate=[2]")
    assert difference["verdict"] == "undecided"  # two seeds and a handful of problems show nothing
    assert difference["detectable"] > found["margin"] == 0.02
    assert [{name: each["values"][name] for name in each["values"]} for each in found["settings"]] == [
        {"tiny escalate=[2]": "[2]", "tiny escalate=[]": "[]"}
    ]
    assert found["start"] == "same"
    assert 0 < difference["shared_tokens"] < 1  # the profile of each seed
    for method in found["methods"]:
        assert [seed["run"] for seed in method["by_seed"]] == method["runs"]
        assert 0 <= method["truncated"] <= 1
        assert 0 <= method["dead_groups"] <= 1
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
            assert by_round.sum() >= 1400
            assert by_round[:-1].sum() < 1400
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
    assert [each["difference"] for each in found["gains"]] == [method["gain"] for method in found["methods"]]
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
    assert "B against A: undecided (" in out
    assert "by seed" in out
    assert "settings that differ" in out


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


def test_the_plan_was_written_before_the_first_token_and_cannot_be_changed(
    compared: tuple[Program, dict[str, Any]],
) -> None:
    program, found = compared
    (folder,) = [path.parent for path in kept(program) if len(json.loads(path.read_text())["methods"][0]["runs"]) == 2]
    plan = json.loads((folder / PLAN).read_text())
    assert found["plan"] == {name: plan[name] for name in ("digest", "detectable", "measured", "before_first_token")}
    assert (plan["measured"], plan["before_first_token"], plan["seeds"]) == (False, True, [3, 4])
    assert plan["cost"] == {"trainings": 4, "tokens": 5600.0, "seconds": None}
    first = min(path.stat().st_mtime for path in (program.home / "lake").rglob("part-*.parquet"))
    assert (folder / PLAN).stat().st_mtime <= first
    path = shutil.copyfile(folder / PLAN, program.home / "changed.json")
    path.write_text(json.dumps({**plan, "detectable": 0.001}))
    with pytest.raises(BadInputError, match="was changed after it was written"):
        read_plan(path)


def test_a_later_plan_rests_on_the_trainings_that_are_stored(compared: tuple[Program, dict[str, Any]]) -> None:
    program, found = compared
    before = program.manifests()
    plan = program.json("compare", str(RECIPE), *HINTS, *QUICK, "--budget", "tokens=1400", "--seeds", "3", "--plan")
    assert program.manifests() == before
    assert (plan["measured"], plan["before_first_token"], plan["problems"]) == (True, False, found["problems"])
    assert sorted(plan["runs"]) == sorted(run for method in found["methods"] for run in method["runs"])
    assert plan["cost"]["trainings"] == 2  # the third seed of both
    assert plan["cost"]["seconds"] > 0
    assert plan["detectable"] > 0
    assert any("fewer than 500" in remark for remark in plan["remarks"])


def test_a_comparison_is_computed_again_from_the_lake_and_a_changed_figure_is_found(
    compared: tuple[Program, dict[str, Any]],
) -> None:
    program, _ = compared
    home = Home(program.home)
    (folder,) = [path.parent for path in kept(program) if len(json.loads(path.read_text())["methods"][0]["runs"]) == 2]
    code, out, err = program.run("compare", "--verify", folder.name)
    assert code == 0, err
    assert "figures" in out
    whole = (folder / COMPARISON).read_text()
    body = json.loads(whole)
    body["methods"][0]["after"]["value"] += 0.01
    (folder / COMPARISON).write_text(json.dumps(body))
    with pytest.raises(BadInputError, match=r"1 of \d+ figures .* the first is methods\.0\.after\.value"):
        verify_comparison(home, folder.name)
    (folder / COMPARISON).write_text(whole)
    assert verify_comparison(home, folder.name)["evaluations"] >= 5


def test_the_functions_find_what_the_verbs_do_and_refuse_what_they_refuse(
    compared: tuple[Program, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program, found = compared
    monkeypatch.setenv("GRADUS_HOME", str(program.home))
    again = gradus.compare([gradus.run(run) for method in found["methods"] for run in method["runs"]])
    assert again["differences"][0]["difference"] == found["differences"][0]["difference"]
    (page,) = gradus.run(found["methods"][0]["runs"][0]).report(tmp_path / "page.html")
    assert "<svg" in page.read_text()
    for wrong, said in (({"recipes": []}, "nothing to compare"), ({"recipes": ["demo"], "seeds": 0}, "seeds = 0")):
        with pytest.raises(gradus.GradusError, match=said):
            gradus.compare(**wrong)


def test_one_recipe_with_several_seeds_is_judged_against_its_start(
    compared: tuple[Program, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    program, found = compared
    alone = compared_runs(Home(program.home), found["methods"][0]["runs"], Terms())
    assert alone["methods"][0]["after"] == found["methods"][0]["after"]
    assert (alone["differences"], alone["seeds"], len(alone["methods"])) == ([], 2, 1)
    render_comparison(alone)
    assert "A against its start: undecided" in capsys.readouterr().out
    plot(alone, program.home / "alone.png")


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
    program, _ = compared
    own = Path(program.home / "other.toml")
    shutil.copyfile(RECIPE, own)
    text = own.read_text().replace("heldout.jsonl", "train.jsonl").replace('name = "tiny"', 'name = "other"')
    own.write_text(text)
    code, _, err = program.run("compare", str(RECIPE), "other.toml", "--budget", "rounds=1")
    assert code == 2
    assert "evaluated in different ways: evaluate.problems" in err


def test_a_method_that_fails_is_a_row_with_its_reason_and_the_others_are_compared(
    compared: tuple[Program, dict[str, Any]],
) -> None:
    program, _ = compared
    limits = ("--set", "update.max_zero_std_frac=0.0", "--set", "update.max_zero_std_frac=1.0")
    words = (str(RECIPE), *limits, *QUICK, "--seeds", "1", "--budget", "rounds=1")
    found = program.json("compare", *words)
    assert [method["method"] for method in found["methods"]] == ["tiny update.max_zero_std_frac=1.0"]
    (failed,) = found["failed"]
    assert failed["method"] == "tiny update.max_zero_std_frac=0.0"
    assert failed["reason"].startswith("tiny update.max_zero_std_frac=0.0, seed 3: ")
    assert "more than max_zero_std_frac = 0.0%" in failed["reason"]
    failing = [path.parent.name for path in kept(program) if "failed" in json.loads(path.read_text())]
    assert verify_comparison(Home(program.home), *failing)["evaluations"] == 2
    plan = program.json("compare", *words, "--plan")  # rests on what finished, and is no error
    assert plan["measured"]


def test_methods_meet_at_their_best_values_which_problems_that_are_not_judged_chose(
    compared: tuple[Program, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, found = compared
    monkeypatch.setenv("GRADUS_HOME", str(program.home))
    monkeypatch.chdir(program.home)
    asked = Asked([str(RECIPE)], budget="rounds=1", seeds=2, set=QUICK[1::2], tune=["escalate=[2],[]"])
    plan = gradus.plan_comparison(
        asked.recipes, budget=asked.budget, seeds=2, set=asked.set, tune=asked.tune, tune_seeds=9
    )
    home = Home(program.home)
    ahead = look_ahead_comparison(home, checked(home, asked))
    assert plan.get("tuning", {}).get("trainings", 0) in (16, 18)  # 16 if this test is repeated
    assert plan["cost"]["trainings"] == 2  # the values are not known yet: all are counted
    assert [(each["method"], each["seed"]) for each in ahead["trainings"]] == [
        ("tiny escalate=[2]", 5),
        ("tiny escalate=[]", 5),
    ]
    assert "this is the tuning, of 2 trainings" in ahead["remarks"][-1]
    words = ("compare", str(RECIPE), *QUICK, "--seeds", "2", "--set", "rounds=1")  # one recipe needs no budget
    best = program.json(*words, "--tune", *asked.tune)
    assert best["budget"] == "1 rounds"
    tuning = best["tuning"]
    (method,) = tuning["methods"]
    assert (tuning["seeds"], tuning["cost"]["trainings"]) == ([5], 2)
    sampled = {
        call["output"]
        for tried in method["tried"]
        for call in calls(program, tried["runs"][0])
        if call["stage"] == "rollout" and not call["purpose"].startswith("eval")
    }  # what both share counts once
    assert tuning["cost"]["tokens"] == sum(
        len(tokens) for output in sampled for tokens in parquet(program, output, "completion_tokens")
    )
    assert tuning["problems"] + best["problems"] == plan["problems"] + tuning["problems"] == found["problems"]
    held = {row: i for i, row in enumerate(sorted(ids(program), key=lambda i: sha256(f"tuning {i}".encode()).digest()))}
    rates = []
    for tried in method["tried"]:
        last = [call["output"] for call in calls(program, tried["runs"][0]) if call["stage"] == "evaluate"][-1]
        columns = (parquet(program, last, each) for each in ("problem_id", "k", "n"))
        rates.append(np.mean([k / n for i, k, n in zip(*columns, strict=True) if held[i] < tuning["problems"]]))
        assert tried["pass_at_1"] == pytest.approx(rates[-1])
    chosen = method["tried"][int(np.argmax(rates))]["values"]
    assert method["chosen"] == chosen
    (same,) = [m for m in found["methods"] if m["method"] == f"tiny escalate={chosen['escalate']}"]
    assert [m["runs"] for m in best["methods"]] == [same["runs"]]  # nothing but the tuning was trained
    (folder,) = [path.parent for path in kept(program) if "tuning" in json.loads(path.read_text())]
    render_comparison(best)
    assert verify_comparison(home, folder.name)["evaluations"] >= 5
    body = json.loads((folder / COMPARISON).read_text())
    body["tuning"]["methods"][0]["chosen"] = {"escalate": "[1]"}
    (folder / COMPARISON).write_text(json.dumps(body))
    with pytest.raises(BadInputError, match=r"the first is tuning\.methods\.0\.chosen\.escalate"):
        verify_comparison(home, folder.name)
    (folder / COMPARISON).write_text(json.dumps(best))


def ids(program: Program) -> list[str]:
    """The problems of the evaluation."""
    (evaluated,) = {
        tuple(sorted(parquet(program, str(path.parent.relative_to(program.home / "lake")), "problem_id")))
        for path in (program.home / "lake").glob("evaluations/*/_manifest.json")
    }
    return list(evaluated)
