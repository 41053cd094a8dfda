"""What of a recipe is not the default."""

from gradus.flows.recipe.config import Recipe, changed_settings, parse_recipe


def test_a_recipe_of_defaults_has_no_changes() -> None:
    assert changed_settings(Recipe(name="plain")) == {}


def test_each_changed_setting_has_its_default_beside_it() -> None:
    body = {
        "name": "changed",
        "rounds": 3,
        "update": {"lr": 0.001, "loss": {"name": "clip", "clip_high": 0.5}},
        "score": {"rewards": ["numeric"]},
        "evaluate": {"sample": {"n": 4}, "report": {"ks": [1]}},
        "profile": {"n": 2},
    }
    changes = changed_settings(parse_recipe(body, "here"))
    plain = Recipe(name="changed")
    assert changes["rounds"] == (str(plain.rounds), "3")
    assert changes["update.lr"] == (str(plain.update.lr), "0.001")
    assert changes["update.loss.clip_high"][1] == "0.5"
    assert "update.loss.clip_low" not in changes
    assert changes["evaluate.suites.heldout.sample.n"][1] == "4"
    # A part that is off by default has no defaults.
    assert changes["profile.n"] == ("", "2")
    assert not [name for name in changes if name.startswith(("ingest", "hint", "rollout"))]


def test_recipes_of_other_components_have_the_same_names() -> None:
    names = [
        set(changed_settings(parse_recipe({"name": "one", "update": {"advantage": advantage}}, "here")))
        for advantage in ("rloo", {"name": "rloo"})
    ]
    assert names[0] == names[1]
    assert "update.advantage" in names[0]
