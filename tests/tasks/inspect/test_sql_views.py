"""`gradus sql` over a lake of an earlier format: whose rewards a run is said to have had, counted by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import CorruptArtifactError, UsageError
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.sql_views import ask
from gradus.tasks.runs.journal import EVENTS
from tests.tasks.written_lake import FINISHED, STARTED, WrittenHome, made, reused

IDS = ("p@r0h0:0", "p@r0h0:1")
BY_PURPOSE = "select run, round, purpose, count(*) as n, sum(reward) as total from samples group by all order by all"


def rewards(*values: float) -> dict[str, float]:
    return dict(zip(IDS, values, strict=True))


def texts(word: str) -> dict[str, str]:
    return {name: f"{word} {name[-1]}" for name in IDS}


class House(WrittenHome):
    """The old home, and questions to it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.said: list[str] = []

    def ask(self, sql: str, run: str | None = None) -> list[tuple[Any, ...]]:
        with ask(Home(self.root), sql, run, self.said.append) as answer:
            return [tuple(row.values()) for batch in answer.batches for row in batch.to_pylist()]


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A training run whose evaluations have the same ids, and the same training scored again by another run."""
    house = House(tmp_path)
    problems = house.artifact("problems/" + "9" * 32, [{"problem_id": "p", "question": "1 + 1 =", "answer": "2"}])
    before, train, after = (
        house.rollouts(digit, texts(word), {"problems": [problems]})
        for digit, word in (("1", "before"), ("2", "train"), ("3", "after"))
    )
    judged = [
        house.scores("a", before, rewards(0, 0), metrics={"reward/mean": 0.0}),
        house.scores("b", train, rewards(1, 0), metrics={"reward/mean": 0.5}),
        house.scores("c", after, rewards(1, 1), metrics={"reward/mean": 1.0}),
    ]
    steps = list(zip((before, train, after), judged, (0, 1, 1), ("eval", "train", "eval"), strict=True))
    house.run(
        "first",
        "train",
        [STARTED, *(e for r, s, at, why in steps for ref in (r, s) for e in made(ref, at, why)), FINISHED],
    )
    again = house.scores("d", train, rewards(0.25, 0.5))
    events = [*reused(before, 0, "eval"), *reused(judged[0], 0, "eval"), *reused(train, 1, "train")]
    house.run("second", "train", [STARTED, *events, *made(again, 1, "train"), FINISHED])
    return house


def test_a_run_has_its_own_rewards_although_ids_repeat_and_rollouts_were_scored_twice(house: House) -> None:
    first = [("first", 0, "eval", 2, 0.0), ("first", 1, "eval", 2, 2.0), ("first", 1, "train", 2, 1.0)]
    second = [("second", 0, "eval", 2, 0.0), ("second", 1, "train", 2, 0.75)]
    assert house.ask(BY_PURPOSE) == [*first, *second]
    assert house.ask(BY_PURPOSE, "first") == first
    assert house.ask(BY_PURPOSE, "second") == second
    assert not house.said
    rows = house.ask(
        "select completion, reward, correct, outcome, parts['numeric'], question, answer, completion_tokens, "
        "rollout_id "
        "from samples where purpose = 'train' order by rollout_id",
        "first",
    )
    assert rows == [
        ("train 0", 1.0, True, "correct", 1.0, "1 + 1 =", "2", 7, "2222222222222222:p@r0h0:0"),
        ("train 1", 0.0, False, "wrong", 0.0, "1 + 1 =", "2", 7, "2222222222222222:p@r0h0:1"),
    ]


def test_the_tables_themselves_pair_a_rollout_with_its_own_scores_alone(house: House) -> None:
    joined = "select count(*), sum(reward) from rollouts join scores using (rollout_id)"
    assert house.ask(joined) == [(8, 3.75)]  # four scores artifacts of two rows: 0 + 1 + 2 + 0.75
    assert house.ask(joined, "second") == [(4, 0.75)]  # before with 0 and 0, train with 0.25 and 0.5
    rounds = "select distinct artifact[1], round from rollouts order by all"  # 0 in all of the files
    assert house.ask(rounds) == house.ask(rounds, "first") == [("1", 0), ("2", 1), ("3", 1)]


def test_scores_that_name_other_rollouts_of_the_same_bytes_are_those_of_the_run(house: House) -> None:
    same = house.rollouts("4", texts("train"), {"problems": ["problems/" + "9" * 32]})
    house.run("third", "train", [STARTED, *made(same, 1, "train"), *reused("scores/" + "b" * 32, 1, "train"), FINISHED])
    assert house.ask(BY_PURPOSE, "third") == [("third", 1, "train", 2, 1.0)]
    (row,) = house.ask("select distinct rollouts_artifact, scores_artifact from samples", "third")
    assert row == ("4" * 32, "b" * 32)


def test_what_a_later_command_of_the_run_made_stands_for_what_it_made_before(house: House) -> None:
    newer = house.rollouts("5", texts("newer"))
    judged = house.scores("e", newer, rewards(0.5, 0.5))
    events = [*made("rollouts/" + "2" * 32, 1, "train"), *made("scores/" + "b" * 32, 1, "train")]
    killed = made("scores/" + "c" * 32, 2, "train", status="killed")
    house.run(
        "fourth", "train", [STARTED, *events, *killed, STARTED, *made(newer, 1, "train"), *made(judged, 1, "train")]
    )
    assert house.ask(BY_PURPOSE, "fourth") == [("fourth", 1, "train", 2, 1.0)]
    shown = house.ask("select stage, round, status, seconds, artifact from stages order by started", "fourth")
    assert [row[:4] for row in shown] == [
        ("rollout", 1, "finished", 2.0),
        ("score", 1, "finished", 2.0),
        ("score", 2, "killed", 0.0),
        ("rollout", 1, "finished", 2.0),
        ("score", 1, "finished", 2.0),
    ]
    assert shown[3][4] == "5" * 32
    assert house.ask("select distinct artifact[1] from rollouts", "fourth") == [("5",)]


def test_verbs_alone_and_what_no_run_names_can_be_asked_for(house: House) -> None:
    mine = house.artifact(
        "rollouts/" + "6" * 32,
        [{"rollout_id": "p:0", "problem_id": "p", "completion": "3", "question": "mine?", "answer": 3}],
    )
    house.run("score-1", "score", [STARTED, *made(house.scores("f", mine, {"p:0": 1.0}), 0, "train"), FINISHED])
    assert house.ask("select run, purpose, question, answer, reward from samples", "score-1") == [
        ("score-1", "score", "mine?", "3", 1.0)
    ]
    unjudged = house.rollouts("7", {"p:0": "alone"})
    house.run("rollout-1", "rollout", [STARTED, *made(unjudged, 0, "train"), FINISHED])
    assert house.ask("select purpose, completion, reward from samples", "rollout-1") == [("rollout", "alone", None)]
    given = house.scores("0", "", {"p:0": 0.125})
    learned = house.artifact("checkpoints/" + "8" * 32, [{"x": 1}], {"rollouts": [mine], "scores": [given]})
    house.run("update-1", "update", [STARTED, *made(learned, 0, "train"), FINISHED])
    assert house.ask("select purpose, completion, reward from samples", "update-1") == [("update", "3", 0.125)]
    assert house.ask("select reward from rollouts join scores using (rollout_id)", "update-1") == [(0.125,)]

    settings, kept = house.root / "runs" / "first" / "run.json", house.root / "first"
    settings.unlink()
    with pytest.raises(CorruptArtifactError, match=r"first has a journal and no run\.json; run the same command again"):
        house.ask("select count(*) from samples")
    settings.parent.rename(kept)
    left = house.ask("select completion, reward, round, purpose from samples where run is null order by completion")
    assert left == [
        ("after 0", 1.0, None, None),
        ("after 1", 1.0, None, None),
        ("train 0", 1.0, None, None),
        ("train 1", 0.0, None, None),
    ]


def test_metrics_are_those_of_the_report_with_the_times_of_the_journal(house: House) -> None:
    path = house.root / "runs" / "first" / EVENTS
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    (end,) = (row for row in rows if row["event"] == "stage_finished" and row["attempt"] == "score-1-train-bbbb")
    end["clock"] = {"perf/compute_s": 7.0}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = "select run, round, purpose, stage, step, name, value from metrics where value > 0 order by all"
    assert house.ask(chosen) == [
        ("first", 1, "eval", "score", None, "reward/mean", 1.0),
        ("first", 1, "train", "score", None, "perf/compute_s", 7.0),
        ("first", 1, "train", "score", None, "reward/mean", 0.5),
    ]
    house.run("third", "train", [STARTED, *reused("scores/" + "b" * 32, 1, "train")])
    assert house.ask(chosen, "third") == [("third", 1, "train", "score", None, "reward/mean", 0.5)]


def test_runs_are_listed_with_their_settings(house: House) -> None:
    rows = house.ask(
        "select run, verb, status, seconds, stages, reused, seed, settings->>'verb' from runs order by run"
    )
    assert rows == [
        ("first", "train", "finished", 12.0, 6, 0, 3, "train"),
        ("second", "train", "finished", 2.0, 1, 3, 3, "train"),
    ]
    (started,) = house.ask("select started::varchar from runs", "first")[0]
    assert started == "2023-11-14 22:13:20"
    with pytest.raises(UsageError, match="there is no run nonesuch"):
        house.ask("select 1", "nonesuch")


def test_artifacts_of_other_types_are_left_out_and_named(house: House) -> None:
    house.ask("select 1")
    house.said.clear()
    question = {"problem_id": "q", "question": "2 + 2 ="}
    house.artifact("problems/" + "a" * 32, [{**question, "answer": ["4", "four"]}])
    house.artifact("problems/" + "b" * 32, [{**question, "answer": 4}])
    high = {"rollout_id": "q:0", "problem_id": "q", "completion": "4", "hint_level": "high"}
    house.artifact("rollouts/" + "c" * 32, [high])
    both = "select (select count(*) from rollouts), count(*), max(hint_level) from samples"
    assert house.ask(both) == [(6, 10, 0)]
    assert house.ask("select answer from problems order by all") == [("2",), ("4",)]
    assert house.said == [
        f"rollouts/{'c' * 32} is left out: its column hint_level is not a whole number",
        f"problems/{'a' * 32} is left out: its column answer is not text",
    ]
