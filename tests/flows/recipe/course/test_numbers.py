"""Numbers that follow schedules: what the settings of each round hold, and what is refused before a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.schedules.progress import Progress
from gradus.flows.loop.inputs import run_name
from gradus.flows.recipe.checking import check_settings
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import stage_config, wave_config
from gradus.flows.recipe.course.past import Past
from gradus.flows.recipe.reading import load_recipe, parse_recipe, recipe_from
from gradus.tasks.runtime.calls import Call
from tests.flows.recipe.test_guards import Rehearsal, recipe, trained

LR = {"schedule": "linear", "start": 1.0e-4, "end": 2.0e-5, "rounds": 5}
BY_ENTROPY = {"schedule": "by_metric", "metric": "policy/entropy", "low": 0.2, "high": 0.6, "start": 0.01, "end": 0.0}


def rates(session: Rehearsal) -> dict[int, float]:
    return {index: lr for index, (_, lr) in session.updates.items()}


def test_the_number_of_a_round_is_what_the_settings_of_its_stages_hold() -> None:
    sample = {"n": {"schedule": "linear", "start": 4, "end": 6, "rounds": 5}}
    session = Rehearsal([0.5] * 9)
    trained(session, recipe([], rounds=6, update={"lr": LR}, curate={"sample": sample}))
    assert rates(session) == pytest.approx({1: 1e-4, 2: 8e-5, 3: 6e-5, 4: 4e-5, 5: 2e-5, 6: 2e-5})
    # 4, 4.5, 5, 5.5, 6, 6: whole numbers, halves to the even one
    assert [session.samples[index, "train"][0] for index in range(1, 7)] == [4, 4, 5, 6, 6, 6]
    assert session.samples[0, "eval"][0] == session.samples[6, "eval"][0]  # evaluation follows no schedule


def test_a_run_of_more_rounds_has_the_same_numbers_in_those_before() -> None:
    short, long = Rehearsal([0.5] * 9), Rehearsal([0.5] * 9)
    trained(short, recipe([], rounds=3, update={"lr": LR}))
    trained(long, recipe([], rounds=6, update={"lr": LR}))
    assert rates(short) == {index: lr for index, lr in rates(long).items() if index <= 3}
    assert run_name(recipe([], rounds=3, update={"lr": LR})) == run_name(recipe([], rounds=6, update={"lr": LR}))


def test_a_number_that_follows_a_metric_sees_the_rounds_before_and_with_overlap_one_less() -> None:
    update = {"entropy_coef": BY_ENTROPY}

    @dataclass
    class Noted(Rehearsal):
        def stage(self, call: Call) -> Any:
            if call.name == "update":
                self.said.append(f"{call.round}: {call.config.entropy_coef:.4f}")
            return super().stage(call)

    session = Noted([9.0, 0.3, 0.4, 0.7, 0.1])
    trained(session, recipe([], rounds=4, update=update))
    assert session.said == ["1: 0.0100", "2: 0.0075", "3: 0.0050", "4: 0.0000"]
    behind = Noted([9.0, 0.3, 0.4, 0.7, 0.1])
    trained(behind, recipe([], rounds=4, overlap=1, update={**update, "max_age": 1}))
    assert behind.said == ["1: 0.0100", "2: 0.0100", "3: 0.0075", "4: 0.0050"]


def test_overrides_and_guards_win_over_a_schedule() -> None:
    guard = {"metric": "policy/entropy", "min": 0.05, "then": "back", "changes": {"update.lr": 7e-5}}
    overrides = [{"stage": "update", "round": 2, "changes": {"lr": 9e-5}}]
    session = Rehearsal([0, 0.5, 0.5, 0.01, 0.5])
    trained(session, recipe([guard], overrides=overrides, update={"lr": LR}))
    assert rates(session) == pytest.approx({1: 1e-4, 2: 9e-5, 3: 6e-5, 4: 7e-5})


def test_settings_of_components_waves_and_terms_follow_schedules() -> None:
    half = {"schedule": "steps", "values": [1, 3], "at": [2]}
    body: dict[str, Any] = {
        "waves": [{"name": "refill", "groups": half}],
        "update": {"terms": [{"loss": "clip"}, {"loss": "k3", "coefficient": half}]},
    }
    found = recipe([], **body)
    waves = [wave_config(found, found.waves[0], index).wave.settings["groups"] for index in (1, 2)]
    terms = [stage_config(found, "update", index, found.update).terms[1].coefficient for index in (1, 2)]
    assert (waves, terms) == ([1, 3], [1.0, 3.0])
    assert parse_recipe(found.model_dump(mode="json"), "again") == found


def test_a_change_of_a_run_replaces_its_schedule_and_a_recipe_without_one_stays_as_it_was() -> None:
    body = recipe([], update={"lr": LR}).model_dump(mode="json")
    assert recipe_from(body, "x", ["update.lr=1e-3"]).schedules == {}
    (path,) = recipe_from(body, "x", ["update.lr.end=3e-5"]).schedules
    assert path == "update.lr"
    assert not {"schedules", "phase"} & load_recipe("demo").model_dump(mode="json").keys()


def test_methods_with_schedules() -> None:
    grown = load_recipe("demo", methods=["grpo_d"])
    coefficients = [stage_config(grown, "update", index, grown.update).kl_coef for index in (1, 100, 200)]
    assert coefficients == [0.001, 0.04, 0.04]
    sampled = load_recipe("demo", methods=["d3s"])
    late = [stage_config(sampled, "update", index, sampled.update) for index in (1, 26, 50)]
    # 25 of 49 steps from 1/4 to 1, and from 1/5 to 1
    kept = [1 / 4, 1 / 4 + 3 / 4 * 25 / 49, 1.0]
    assert [each.shapes[0].settings["frac"] for each in late] == pytest.approx(kept)
    assert [each.weights[0].settings["frac"] for each in late] == pytest.approx([0.2, 0.2 + 0.8 * 25 / 49, 1.0])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"update": {"lr": {"schedule": "liner"}}}, "there is no schedule 'liner'; did you mean linear"),
        ({"update": {"lr": {**LR, "ends": 1}}}, "there is no setting schedules.update.lr.ends"),
        ({"update": {"lr": {**LR, "end": -1.0}}}, r"lr: it must be greater than 0"),
        (
            {"update": {"lr": {"schedule": "linear", "start": 1.0, "end": 0.5}}},
            "update.lr: .*either rounds or tokens or opt",
        ),
        ({"update": {"loss": LR}}, "update.loss"),
        ({"update": {"lrr": LR}}, "there is no setting update.lrr; did you mean update.lr"),
        ({"curate": {"sample": {"n": {**LR, "start": 4.5, "end": 8}}}}, "curate.sample.n: it must be a whole number"),
        ({"profile": {"n": {**LR, "start": 2, "end": 4}}}, r"profile.n cannot follow a schedule"),
        ({"waves": [{"name": "refill", "times": {**LR, "start": 1, "end": 2}}]}, "waves.0.times cannot follow"),
        (
            {"update": {"entropy_coef": {**BY_ENTROPY, "metric": "entropy"}}},
            "no round records 'entropy'; did you mean policy/entropy",
        ),
        ({"update": {"entropy_coef": {**BY_ENTROPY, "end": float("inf")}}}, "finite"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(body: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        recipe([], **body)


def users(folder: Path, text: str, **update: Any) -> Recipe:
    (folder / "mine.py").write_text(f"from gradus.components import component\n\n\n{text}\n")
    return recipe([], update={"lr": {"schedule": f"{folder}/mine.py:halved"}, **update})


def test_a_function_of_the_users_is_not_run_when_a_recipe_is_read(tmp_path: Path) -> None:
    text = '@component("schedule")\ndef halved(now, *, start: float = 8e-5):\n    return start * 0.5 ** (now.round - 1)'
    found = users(tmp_path, text)
    assert found.update.lr == Recipe(name="x").update.lr
    assert [stage_config(found, "update", index, found.update).lr for index in (1, 2, 4)] == [8e-5, 4e-5, 1e-5]
    check_settings(found, tmp_path)
    past = Past().after(10, {"policy/entropy": 0.5}, steps=4)
    assert past.progress(2, 0) == Progress(2, 10, {"policy/entropy": (0.5,)}, 4)
    later = past.after(7, {}, steps=3)  # of a phase that begins with round 2, its own tokens and steps count
    assert later.progress(3, 0, first=2) == Progress(2, 7, {"policy/entropy": (0.5,)}, 3)


def test_a_function_of_the_users_that_returns_no_number(tmp_path: Path) -> None:
    found = users(tmp_path, '@component("schedule")\ndef halved(now):\n    return float("nan")')
    with pytest.raises(BadInputError, match=r"schedule halved \(mine.py line 4\) returned float; .*finite number"):
        stage_config(found, "update", 1, found.update)
