"""Which samplings a run comes to: overrides by round, guards, and none that no round takes."""

from typing import Any

from gradus.flows.recipe.reading import parse_recipe
from gradus.flows.recipe.samplings import changing_rounds, samplings

BODY: dict[str, Any] = {
    "name": "own",
    "rounds": 3,
    "escalate": [1],
    "profile": {"max_tokens": 10},
    "curate": {"sample": {"max_tokens": 20}},
    "evaluate": {"sample": {"max_tokens": 30}},
}


def longest(**changes: object) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for each in samplings(parse_recipe({**BODY, **changes}, "own.toml")):
        found.setdefault(each.setting.split(".")[0], set()).add(each.sample.max_tokens)
    return {setting: sorted(values) for setting, values in found.items()}


def test_overrides_hold_in_the_samplings_of_their_rounds() -> None:
    plain = {"profile": [10], "evaluate": [30], "curate": [20], "escalate": [20]}
    assert longest() == plain
    curate = {"stage": "curate", "changes": {"sample.max_tokens": 40}}
    both = plain | {"curate": [40], "escalate": [40]}
    assert longest(overrides=[curate]) == both
    assert longest(overrides=[{**curate, "from_round": 1}]) == both
    assert longest(overrides=[{**curate, "round": 1}]) == plain | {"curate": [20, 40], "escalate": [20, 40]}
    assert longest(overrides=[{**curate, "round": 1}], rounds=1) == both
    escalate = {"stage": "escalate", "round": 2, "changes": {"sample.max_tokens": 50}}
    assert longest(overrides=[escalate]) == plain | {"escalate": [20, 50]}
    assert longest(rounds=0) == {"profile": [10], "evaluate": [30]}
    guard = {"metric": "length/mean", "max": 9, "then": "back", "changes": {"curate.sample.max_tokens": 15}}
    assert longest(guards=[guard]) == plain | {"curate": [15, 20], "escalate": [15, 20]}


def test_a_sampling_is_called_by_the_key_that_sets_it() -> None:
    def keys(evaluate: object) -> set[str]:
        recipe = parse_recipe({**BODY, "evaluate": evaluate}, "own.toml")
        return {each.setting for each in samplings(recipe) if each.suite}

    assert keys({"sample": {"max_tokens": 30}}) == {"evaluate.sample"}
    suites = [{"name": name, "sample": {"max_tokens": 30}} for name in ("one", "other")]
    assert keys({"suites": suites}) == {"evaluate.suites.0.sample", "evaluate.suites.1.sample"}


def test_rounds_between_which_settings_change() -> None:
    changes = {"stage": "update", "changes": {"lr": 1e-5}}
    recipe = parse_recipe({**BODY, "overrides": [{**changes, "round": 2}]}, "own.toml")
    assert changing_rounds(recipe, "update") == [1, 2, 3]
    assert changing_rounds(recipe, "curate") == [1]
