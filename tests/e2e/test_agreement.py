"""`gradus agree` through the real program: verdicts counted a second way, and a rerun from where it says."""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradus
from gradus.data.errors import UsageError
from tests.e2e.conftest import RECIPE, Program
from tests.e2e.methods.made import Made

ANYWHERE = """
import re


def anywhere(rows):
    # From round 2 on any number of the completion counts; the round is that of the group's name.
    found = []
    for row in rows:
        numbers = re.findall(r"-?[0-9]+", row["completion"])
        late = "@r2" in row["group_id"]
        right = row["answer"] in (numbers if late else numbers[-1:])
        found.append({"value": float(right), "correct": right})
    return found
"""
OPPOSITE = """

def opposite(rows):
    # From round 2 on the truth is not what the run's reward says.
    found = []
    for row in rows:
        numbers = re.findall(r"-?[0-9]+", row["completion"])
        right = (row["answer"] in numbers[-1:]) is ("@r1" in row["group_id"])
        found.append({"value": float(right), "correct": right})
    return found
"""
SMALL = ("rounds=3", "curate.draw=8", "evaluate.every=3", "escalate=[]", "curate.sample.max_tokens=60")


@pytest.fixture(scope="module")
def trained(new_program: Callable[..., Program]) -> tuple[Program, dict[str, Any]]:
    program = new_program(warm=True)
    (program.home / "mine.py").write_text(ANYWHERE + OPPOSITE)
    program.json("train", str(RECIPE), *[word for each in SMALL for word in ("--set", each)], "--run", "base")
    return program, program.json("agree", "mine.py:anywhere", "--rollouts", "base")


def by_hand(program: Program) -> list[tuple[int, str, str, bool, bool, float]]:
    """Round, problem, group, both verdicts and the stored reward of every row that is learned from."""
    made, found = Made(program, "base"), []
    gold = {name: row["answer"] for name, row in made.problems.items()}
    for index in (1, 2, 3):
        for row in made.sampled(index):
            numbers = re.findall(r"-?[0-9]+", row["completion"])
            other = gold[row["problem_id"]] in (numbers if index == 2 else numbers[-1:])
            found.append((index, row["problem_id"], row["group_id"], row["correct"], other, row["reward"]))
    return found


def test_the_report_of_an_agreement_shows_the_rows_on_which_they_disagree(
    trained: tuple[Program, dict[str, Any]],
) -> None:
    program, found = trained
    (pair,) = found["pairs"]
    program.json("report", found["run"], "--out", "flips.html")
    page = (program.home / "flips.html").read_text()
    assert f"They disagree on {pair['num_flips']:,} rollouts." in page
    assert all(each["rollout_id"] in page for each in pair["flips"])
    assert f"the first update that differs is that of round {pair['divergences'][0]['round']}." in page


def test_rounds_flips_and_groups_are_those_of_the_files(trained: tuple[Program, dict[str, Any]]) -> None:
    program, found = trained
    (pair,) = found["pairs"]
    assert (pair["first"], pair["second"], found["rewards"]) == ("own", "anywhere", ["own", "anywhere"])
    rows = by_hand(program)
    groups = defaultdict[tuple[int, str], list[tuple[float, float]]](list)
    for index, _, group, _, other, reward in rows:
        groups[index, group].append((reward, float(other)))

    def standard(values: np.ndarray) -> np.ndarray:
        return (values - values.mean()) / (values.std() or 1.0)

    changed = {key for key, each in groups.items() if not np.allclose(*map(standard, np.array(each).T))}
    for each in pair["rounds"]:
        index = each["round"]
        assert each["rows"] == sum(row[0] == index for row in rows)
        assert each["flips"] == sum(row[3] != row[4] for row in rows if row[0] == index)
        assert each["groups"] == sum(key[0] == index for key in groups)
        assert each["groups_changed"] == sum(key[0] == index for key in changed)
    assert [each["groups_changed"] > 0 for each in pair["rounds"]] == [False, True, False]
    tokens = sum(len(row["completion_tokens"]) for row in Made(program, "base").sampled(3))
    tokens += sum(len(row["completion_tokens"]) for row in Made(program, "base").table("rollout", 3, "eval"))
    (divergence,) = pair["divergences"]
    assert (divergence["run"], divergence["round"], divergence["tokens"]) == ("base", 2, tokens)
    assert divergence["since"] is None or divergence["since"]["before"] < divergence["since"]["after"]


def test_cells_count_every_row_once_in_each_column(trained: tuple[Program, dict[str, Any]]) -> None:
    program, found = trained
    (pair,) = found["pairs"]
    whole, *others = pair["cells"]
    assert whole["rows"] == found["rollouts"] - pair["num_unjudged"]
    for by in ("round", "purpose", "domain", "source", "tokens"):
        cells = [cell for cell in others if cell["by"] == by]
        assert len(cells) > 1
        for count in ("rows", "both_right", "only_first", "only_second", "both_wrong"):
            assert sum(cell[count] for cell in cells) == whole[count]
    assert whole["only_first"] + whole["only_second"] == pair["num_flips"] > 0
    (own,) = program.json("sql", "select count(*) from samples where correct", "--run", "base")["rows"][0]
    assert whole["both_right"] + whole["only_first"] == own
    folder = program.home / "runs" / found["run"]
    assert json.loads((folder / "agreement.json").read_text()) == found
    for flip in pair["flips"]:
        assert flip["right"] == "anywhere"


def test_the_same_command_judges_nothing_again_and_is_read_by_a_person(trained: tuple[Program, dict[str, Any]]) -> None:
    program, _ = trained
    before = program.manifests()
    code, out, err = program.run("agree", "mine.py:anywhere", "--rollouts", "base", COLUMNS="160")
    assert code == 0, err
    assert program.manifests() == before
    assert "base: with anywhere, the first update that differs is that of round 2; " in " ".join(out.split())
    same = program.json("agree", "numeric", "--rollouts", "base")["pairs"][0]
    assert same["num_flips"] == 0
    assert same["divergences"] == [{"run": "base", "round": None, "tokens": 0, "since": None}]
    three = program.json("agree", "numeric", "math", "mine.py:anywhere", "--rollouts", "base")
    assert [(each["first"], each["second"]) for each in three["pairs"]] == [
        ("numeric", "math"),
        ("numeric", "anywhere"),
        ("math", "anywhere"),
    ]


def computed(program: Program, run: str) -> set[int]:
    return {each["round"] for each in program.events(run) if each["event"] == "stage_started"}


def test_a_run_is_amended_from_there_and_nothing_is_computed_before(trained: tuple[Program, dict[str, Any]]) -> None:
    program, found = trained
    runs = set((program.home / "runs").iterdir())
    foreseen = program.json("amend", "base", "mine.py:anywhere", "--dry-run")
    assert foreseen["agreement"]["pairs"][0]["divergences"] == found["pairs"][0]["divergences"]
    assert set((program.home / "runs").iterdir()) == runs
    amended = program.json("amend", "base", "mine.py:anywhere")["amended"]
    assert computed(program, amended["run"]) == {2, 3}
    old, new = (Made(program, run).of("update", 2)[0]["output"] for run in ("base", amended["run"]))
    assert old != new
    assert {row["verifier"].partition("@")[0] for row in Made(program, amended["run"]).table("score", 2)} == {
        "mine.py:anywhere"
    }
    again = program.json(
        *("rerun", "base", "score", "--from-round", "2", "--set", 'rewards=[{name="mine.py:anywhere"}]')
    )
    assert Made(program, again["run"]).of("update", 2)[0]["output"] == new


def test_a_run_whose_updates_would_be_the_same_is_left_alone(trained: tuple[Program, dict[str, Any]]) -> None:
    program, _ = trained
    before = program.manifests()
    code, out, err = program.run("amend", "base", "numeric=2", COLUMNS="160")
    assert code == 0, err
    assert "every update would be the same: there is nothing to train again" in out
    assert program.json("amend", "base", "numeric")["amended"] is None
    assert {name for name in program.manifests() if not name.startswith("scores/")} == {
        name for name in before if not name.startswith("scores/")
    }


def test_a_sum_of_rewards_is_compared_as_a_run_would_have_it(trained: tuple[Program, dict[str, Any]]) -> None:
    program, _ = trained
    found = program.json("agree", "numeric", "chrf", "--together", "--rollouts", "base")
    (pair,) = found["pairs"]
    assert (pair["first"], pair["second"]) == ("own", "numeric+chrf")
    assert pair["num_flips"] == 0, "numeric decides"
    query = (
        "select reward, components['numeric'] + components['chrf'] from scores where map_keys(components)[2] = 'chrf'"
    )
    rows = program.json("sql", query)["rows"]
    assert len(rows) == found["rollouts"]
    assert all(reward == pytest.approx(total) for reward, total in rows)
    assert pair["divergences"][0]["round"] == 1, "chrf differs within groups from the first round on"
    code, _, err = program.run("agree", "numeric", "--together", "--rollouts", "base", "--rollouts", "base2")
    assert (code, "compares with the rewards of one run" in err) == (2, True)


def test_rows_of_several_rounds_or_runs_count_once_and_in_the_rounds_of_each_run(
    trained: tuple[Program, dict[str, Any]],
) -> None:
    program, _ = trained
    small = ("rounds=2", "curate.draw=4", "curate.sample.n=2", "evaluate.every=1", "profile.n=2")
    words = [word for each in (*small, "escalate=[]") for word in ("--set", each)]
    program.json("train", str(RECIPE), *words, "--run", "skips")
    evaluated = [each["output"] for each in Made(program, "skips").of("rollout", None, "eval")]
    assert len(evaluated) > len(set(evaluated)), "a round without an update is evaluated by the same rollouts"
    program.json("train", str(RECIPE), *words, "--run", "alike")
    (counted,) = program.json("sql", "select count(distinct rollout_id) from samples", "--run", "skips")["rows"]
    for runs in (["skips"], ["skips", "alike"]):
        named = [word for run in runs for word in ("--rollouts", run)]
        found = program.json("agree", "numeric", "math", *named)
        (pair,) = found["pairs"]
        assert found["rollouts"] == pair["cells"][0]["rows"] + pair["num_unjudged"] == counted[0]
        assert [(each["run"], each["round"]) for each in pair["rounds"]] == sorted((r, i) for r in runs for i in (1, 2))
    code, out, _ = program.run("agree", "numeric", "math", "--rollouts", "skips", COLUMNS="160")
    assert code == 0
    assert "skips: numeric and math make the same updates" in " ".join(out.split())


def test_an_auditor_judges_some_rows_and_finds_the_round(trained: tuple[Program, dict[str, Any]]) -> None:
    program, _ = trained
    found = program.json("bisect", "base", "--with", "mine.py:opposite", "--rows", "8", "--beside", "mine.py:anywhere")
    bisection = found["found"]
    assert bisection["round"] == 2
    assert [(each["round"], each["rows"], each["differ"]) for each in bisection["audited"]] == [
        (1, 8, 0),
        (2, 8, 8),
        (3, 8, 8),
    ]
    query = "select rollout_id from scores where map_keys(components)[1] = 'opposite'"
    audited = {":".join(name.split(":")[-2:]) for (name,) in program.json("sql", query)["rows"]}
    assert len(audited) == 24, "no row more than was audited"
    assert doubted(program) <= audited
    code, _, err = program.run("bisect", "base", "--with", "chrf", "--rows", "4")
    assert (code, "chrf reaches no verdict on these 4 rollouts" in err, "--at 0.5" in err) == (1, True, True)
    same = program.json("bisect", "base", "--with", "numeric", "--rows", "8")["found"]
    assert (same["round"], same["p"], len(same["audited"])) == (None, 1.0, 2)


def doubted(program: Program) -> set[str]:
    """Rows of round 2 that `anywhere` takes for right and the run's own reward does not."""
    gold = {name: row["answer"] for name, row in Made(program, "base").problems.items()}
    return {
        ":".join(row["rollout_id"].split(":")[-2:])
        for row in Made(program, "base").sampled(2)
        if gold[row["problem_id"]] in re.findall(r"-?[0-9]+", row["completion"]) and not row["correct"]
    }


def test_labels_of_a_person_find_the_round(trained: tuple[Program, dict[str, Any]]) -> None:
    program, _ = trained
    made = [(index, row) for index in (1, 2, 3) for row in Made(program, "base").sampled(index)]
    truth = {row["rollout_id"]: row["correct"] is (index < 3) for index, row in made}
    file = program.home / "labels.jsonl"
    asked = ("bisect", "base", "--with", "labels.jsonl", "--rows", "6")
    for num_new in (12, 6):
        before = file.read_text() if file.exists() else ""
        found = program.json(*asked)
        assert (found["found"], found["to_label"]) == (None, num_new)
        assert file.read_text().startswith(before)
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        assert sum(row["correct"] is None for row in rows) == num_new
        assert all(row["question"] and row["completion"] for row in rows)
        labelled = [{**row, "correct": truth[row["rollout_id"]]} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    assert program.json(*asked)["found"]["round"] == 3
    code, out, _ = program.run(*asked, COLUMNS="160")
    assert (code, "base: the auditor disagrees more often from round 3 on" in out) == (0, True)
    file.write_text(file.read_text().replace("true", '"yes"', 1))
    code, _, err = program.run(*asked)
    assert (code, 'is "yes", no label' in err, "Traceback" in err) == (1, True, False)
    code, _, err = program.run("bisect", "base")
    assert (code, "there is no auditor" in err) == (2, True)


def test_what_cannot_be_compared_is_refused(
    trained: tuple[Program, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, _ = trained
    monkeypatch.setenv("GRADUS_HOME", str(program.home))
    with pytest.raises(UsageError, match="there are no rollouts to judge"):
        gradus.agree(["math"])
    with pytest.raises(UsageError, match="there is no reward to compare"):
        gradus.agree([], rollouts=["base"])
    with pytest.raises(UsageError, match="one reward alone is compared with a run's own"):
        gradus.agree(["math"], rollouts=[f"rollouts/{program.outputs('base', 'rollout')[0].name}"])
    for words, expected, sentence in (
        (("mathh", "--rollouts", "base"), 2, "did you mean math?"),
        (("math", "--rollouts", "nobody"), 2, "nobody"),
        (("mine.py:nowhere", "--rollouts", "base"), 1, "has no function 'nowhere'"),
    ):
        code, _, err = program.run("agree", *words)
        assert code == expected, err
        assert sentence in err
        assert "Traceback" not in err
    code, _, err = program.run("agree", "chrf", "--rollouts", "base")
    assert code == 1
    assert "chrf reaches no verdict on these" in err
