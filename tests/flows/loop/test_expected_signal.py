"""The next round's groups without variance in a dry run: of a table that is given, of a policy's in the lake, of none.

Numbers are by hand, with a uniform prior in place of the fitted one.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.arrays import Ints
from gradus.data.curation.surface.forecast import Prior
from gradus.data.lake.store import Store
from gradus.flows.console.answers import Signal
from gradus.flows.loop import expected_signal
from gradus.flows.loop.comparing.budget import Asked
from gradus.flows.loop.comparing.methods import checked
from gradus.flows.loop.dry_run import look_ahead, look_ahead_comparison, render_comparison_ahead
from gradus.flows.loop.expected_signal import signal_fields, signal_rows
from gradus.flows.loop.reruns import Rerun
from gradus.flows.recipe.reading import parse_recipe
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.settings import Home
from tests.tasks.written_lake import WrittenHome

KNOWN = {"a": (4, 4), "b": (8, 0), "c": (2, 1)}
DEAD = {"a": 5 / 9 + 1 / 126, "b": 9 / 13 + 9 / 6435, "c": 2 / 7}
"""By hand for groups of 4: Beta(5, 1), Beta(1, 9) and Beta(2, 2), as 2 * (2 * 3 * 4 * 5) / (4 * 5 * 6 * 7) there."""


@pytest.fixture(autouse=True)
def uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    def flat(_n: Ints, _k: Ints) -> Prior:
        return Prior(1.0, 1.0)

    monkeypatch.setattr(expected_signal, "fitted_prior", flat)


def ahead(folder: Path, **more: Any) -> tuple[Signal | None, Home]:
    """The forecast of a recipe on problems a, b, c and d in groups of 4."""
    rows = [{"problem_id": name, "question": f"{name} + 1 =", "answer": "2"} for name in "abcd"]
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    body = {
        "name": "own",
        "rounds": 1,
        "problems": str(folder / "mine.jsonl"),
        "escalate": [],
        "curate": {"sample": {"n": 4}},
        "score": {"rewards": [{"name": "numeric"}]},
        "evaluate": {"problems": "bundled:heldout", "sample": {"n": 1}, "report": {"ks": [1]}},
        **more,
    }
    home = Home(folder / "home")
    return look_ahead(home, Rerun(parse_recipe(body, "own.toml"), None))["signal"], home


def table(folder: Path) -> str:
    rows = [{"problem_id": name, "n": n, "k": k} for name, (n, k) in KNOWN.items()]
    (folder / "known.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "known.jsonl")


def in_the_lake(folder: Path) -> None:
    """A table of the bundled policy at temperature 1, by rollouts of 10 tokens."""
    house, policy = WrittenHome(folder / "home"), resolve_artifact(Store(folder / "other"), "bundled", "checkpoints")
    rows = [{"rollout_id": "r", "problem_id": "a", "completion": "2", "completion_tokens": [1] * 10, "hint_level": 0,
             "temperature": 1.0}]  # fmt: skip
    rollouts = house.artifact(f"rollouts/{'1' * 32}", rows, {"policy": [str(policy)]})
    columns = {"problem_id": list(KNOWN), "n": [n for n, _ in KNOWN.values()], "k": [k for _, k in KNOWN.values()]}
    difficulty = pa.table({**columns, "policies": [[policy.digest]] * 3})
    house.artifact(f"difficulty/{'2' * 32}", difficulty, {"rollouts": [rollouts]})


def test_nothing_known_is_said_so(tmp_path: Path) -> None:
    found, _ = ahead(tmp_path, profile={"n": 2})
    assert found is not None
    assert (found["measured"], found["no_variance_frac"], found["solved_of_8"], found["prior"]) == (0, None, None, None)
    assert signal_fields(found) == {
        "signal": "unknown: the lake has no pass rate of round 1's problems with its policy"
    }
    assert signal_fields(None) == {}


def test_a_table_that_is_given_is_forecast_over_the_draw_of_the_round(tmp_path: Path) -> None:
    curate = {"filters": [{"name": "pass_rate", "low": 0.1}], "sample": {"n": 4}}
    found, _ = ahead(tmp_path, rounds=2, curate=curate, begin={"difficulty": table(tmp_path)})
    assert found is not None
    assert found["round"] == 1
    # b is dropped; d was never measured, and passes: 2 / 5 in groups of 4
    assert (found["problems"], found["measured"], found["drawn"], found["group"]) == (3, 2, True, 4)
    assert found["no_variance_frac"] == pytest.approx((DEAD["a"] + DEAD["c"] + 2 / 5) / 3)
    # E[(1 - p)^8]: 8! 5! / 13! under Beta(5, 1), 2 * 3 / (10 * 11) under Beta(2, 2), 1 / 9 under Beta(1, 1)
    none_right = (1 / 1287, 6 / 110, 1 / 9)
    assert found["solved_of_8"] == pytest.approx(3 - sum(none_right))
    assert (found["rollout_tokens"], found["signal_group_tokens"]) == (None, None)
    said = signal_fields(found)
    assert said["signal"].endswith(
        "(mean over the 3 problems drawn, 2 of them measured), unknown tokens for each other group"
    )


def test_a_policy_s_rates_in_the_lake_stand_in_for_a_profile_that_is_to_be_made(tmp_path: Path) -> None:
    in_the_lake(tmp_path)
    curate = {"filters": [{"name": "pass_rate", "high": 0.9, "unmeasured": "drop"}], "sample": {"n": 4}}
    found, _ = ahead(tmp_path, profile={"n": 2}, curate=curate)
    assert found is not None
    assert (found["problems"], found["measured"], found["drawn"]) == (2, 2, True)  # b and c
    dead = (DEAD["b"] + DEAD["c"]) / 2
    assert found["no_variance_frac"] == pytest.approx(dead)
    assert found["rollout_tokens"] == 10.0
    assert found["signal_group_tokens"] == pytest.approx(10 * 4 / (1 - dead))


def test_a_draw_by_something_unknown_is_forecast_over_all_problems(tmp_path: Path) -> None:
    in_the_lake(tmp_path)
    own = tmp_path / "own.py"
    code = ("from gradus.data.curation.results import selection", "", "", "def mine(candidates):")
    own.write_text("\n".join((*code, "    return selection(candidates.num_rows, [])", "")))
    curate = {"filters": [{"name": f"{own}:mine"}], "draw": 2, "sample": {"n": 4}}
    found, _ = ahead(tmp_path, profile={"n": 2}, curate=curate)
    assert found is not None
    assert (found["problems"], found["groups"], found["measured"], found["drawn"]) == (4, 2, 3, False)
    assert found["no_variance_frac"] == pytest.approx((sum(DEAD.values()) + 2 / 5) / 4)
    none_right = (1 / 1287, 9 / 17, 6 / 110, 1 / 9)
    assert found["solved_of_8"] == pytest.approx(2 * (1 - sum(none_right) / 4))  # of the draw
    assert "mean over all 4 problems, 3 of them measured" in signal_fields(found)["signal"]


def test_a_given_plan_is_forecast_over_its_rows(tmp_path: Path) -> None:
    rows = [{"problem_id": "c", "n": 4}, {"problem_id": "a", "n": 4}, {"problem_id": "b", "n": 4}]
    (tmp_path / "plan.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    begin = {"difficulty": table(tmp_path), "plan": str(tmp_path / "plan.jsonl")}
    found, _ = ahead(tmp_path, curate={"draw": 2}, begin=begin)
    assert found is not None
    assert (found["problems"], found["measured"], found["drawn"], found["group"]) == (2, 2, True, 4)
    assert found["no_variance_frac"] == pytest.approx((DEAD["a"] + DEAD["c"]) / 2)


def test_a_comparison_foresees_the_groups_of_each_method(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    in_the_lake(tmp_path)
    ahead(tmp_path)
    body = (
        'rounds = 1\nproblems = "mine.jsonl"\nescalate = []\n'
        '[score]\nrewards = ["numeric"]\n[evaluate]\nproblems = "bundled:heldout"\nsample.n = 1\nreport.ks = [1]\n'
    )
    some = '[[curate.filters]]\nname = "pass_rate"\nhigh = 0.9\nunmeasured = "drop"\n'
    (tmp_path / "own.toml").write_text('name = "own"\n' + body)
    (tmp_path / "some.toml").write_text('name = "some"\n' + body + some)
    monkeypatch.chdir(tmp_path)
    home = Home(tmp_path / "home")
    found = look_ahead_comparison(
        home, checked(home, Asked(["own.toml", "some.toml"], budget="rounds=1", seeds=2, set=["curate.sample.n=4"]))
    )
    every, few = (sum(DEAD.values()) + 2 / 5) / 4, (DEAD["b"] + DEAD["c"]) / 2
    shares = [each["signal"]["no_variance_frac"] for each in found["trainings"] if each["signal"]]
    assert sorted(filter(None, shares)) == pytest.approx(sorted([every, few] * 2))
    rows = signal_rows([(each["method"], each["signal"]) for each in found["trainings"]])
    assert [row[1:4] for row in rows] == [("1", "75 %", f"{100 * every:.0f} %"), ("1", "100 %", f"{100 * few:.0f} %")]
    assert [row[4] for row in rows] == [f"{40 / (1 - each):.0f}" for each in (every, few)]
    render_comparison_ahead(found)
    assert f"{100 * few:.0f} %" in capsys.readouterr().out
    assert signal_rows([("a", None)]) == []
    unknown, _ = ahead(tmp_path / "home", profile={"n": 2})
    assert signal_rows([("a", None), ("b", unknown)])[0][:4] == ("b", "1", "0 %", "unknown")
