"""Recipes: every bundled one is valid, wrong keys are named, `--set` reaches any key."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.errors import UsageError
from gradus.flows.library.texts import mapping, parse_filter, parse_reward
from gradus.flows.recipe import reading, sections
from gradus.flows.recipe.assignments import set_dotted, toml_value
from gradus.flows.recipe.checking import check_settings, warm_up_remark
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import stage_config
from gradus.flows.recipe.guards import Override
from gradus.flows.recipe.reading import RECIPES, load_recipe, parse_recipe, refuse_unjudged
from gradus.flows.runs import changed_settings, run_name
from gradus.tasks.config.score import SCORE, ScoreConfig
from gradus.tasks.preflight.checks import check_stage


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda p: p.stem)
def test_every_bundled_recipe_is_valid_and_named_after_its_file(path: Path) -> None:
    assert load_recipe(path.stem).name == path.stem


def test_set_reaches_nested_keys_and_reads_toml_values() -> None:
    recipe = load_recipe("demo", ["update.lr=3e-4", "escalate=[1, 3]", "name=mine", "curate.sample.n=4"])
    assert (recipe.update.lr, recipe.escalate, recipe.name, recipe.curate.sample.n) == (3e-4, (1, 3), "mine", 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "update.learning_rate=1",
            "there is no setting update.learning_rate; did you mean update.lr",
        ),
        ("update.lrr=1", r"there is no setting update.lrr; did you mean update.lr\?"),
        (
            "update.std_eps=1",
            r"there is no setting update.std_eps; did you mean update.advantage.std_eps or update.loss.std_eps\?",
        ),
        ("update.clip_high=1", r"there is no setting update.clip_high; did you mean update.loss.clip_high\?"),
        ("curate.explore_frac=1", r"there is no setting curate.explore_frac; did you mean curate.sampler.explore_frac"),
        ("lr=1", r"there is no setting lr; did you mean update.lr\?"),
        ("updat.lr=1", r"there is no setting updat; did you mean update\?"),
        ("evaluate.evry=2", r"there is no setting evaluate.evry; did you mean evaluate.every or keep.every\?"),
        ("evaluate.sample.m=2", "there is no setting evaluate.sample.m; did you mean evaluate.sample.n "),
        ("phase=[{rounds=1},{untl=1}]", r"there is no setting phase.1.untl; did you mean phase.1.until "),
        ("phase=[{rounds=1},{zzz=1}]", "phase.1.zzz; the settings of phase.1 are rounds, tokens, until, problems,"),
        ('roles={judge={polcy="x"}}', r"there is no setting roles.judge.polcy; did you mean roles.judge.policy"),
        ('score.rewards=["numeric",{name="format",weigth=1}]', r"score.rewards.1.weigth .*did you mean weight\?"),
        ("rounds.x=1", "rounds is one value"),
        ("escalate.7=1", "escalate is a list of 1"),
        ("escalate.x=1", "escalate is a list of 1"),
        ("escalate=[0]", "escalate.0: it must be greater than or equal to 1"),
        ('waves=["refill", "refill"]', "the wave refill stands twice"),
        ('waves=["mine.py:eval_again"]', "a wave cannot be called eval_again"),
        ('waves=["mine.py:update"]', "a wave cannot be called update"),
        ('waves=["escalate"]', r"once by `escalate`, once in `waves`; set escalate = \[\]"),
        ('waves=["nonesuch"]', "there is no wave 'nonesuch'"),
        ('waves=[{name="refill", times=0}]', "waves.0.times: it must be greater than or equal to 1"),
        ("overrides=[{stage='refill'}]", "there is no stage 'refill' in it"),
        ("overrides=[{stage='updat'}]", r"there is no stage 'updat' in it; did you mean update\?"),
        ("overrides=[{stage='update',changes={lr='x'}}]", "update: lr: it must be a number"),
        ("overrides=[{stage='evaluate',changes={ks=[1,20]}}]", "pass@20 needs 20 samples of each problem, and n is 8"),
        ("update.lr=-1", "update.lr: it must be greater than 0"),
        (
            'update.lr={name="linear"}',
            'lr: it must be a number; in a recipe a schedule is written { schedule = "linear"',
        ),
        ("score.reward_by=kind", r"score.reward_by: it does not match \^\(domain\|source\|problem"),
        ('guards=[{metric="reward/mean",min=0.9,max=0.1}]', "guards.0: min = 0.9 is above max = 0.1, so that every"),
        ('rollout.prompt.template="Q:"', "rollout.prompt.template: the template has no {question}"),
        ('evaluate.prompt.template="{q}"', "evaluate.prompt.template: the template has the unknown placeholder {q}"),
        ('rollout.prompt.system="{hint}"', "rollout.prompt.system: the system message has {hint}"),
        ('prompt.system="Add."', "there is no setting prompt; did you mean .*rollout.prompt"),
        ('rollout.stop=["a", ""]', "rollout.stop.1: it must have at least 1 character"),
        (f"rollout.stop={['a'] * 17}", "rollout.stop: it has too many entries"),
        ("rounds=many", "rounds: it must be a whole number"),
        ("rounds", "is not an assignment"),
    ],
)
def test_a_wrong_setting_is_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_recipe("demo", [text])


def test_all_wrong_settings_are_named_at_once() -> None:
    with pytest.raises(UsageError) as refused:
        load_recipe("demo", ["update.learning_rate=1", "rounds=many", "update.nonesuch=1", "update.kl_coef=-1"])
    assert refused.value.message.endswith(
        "demo.toml: 4 settings are wrong: rounds: it must be a whole number; "
        "update.kl_coef: it must be greater than or equal to 0; "
        "there is no setting update.learning_rate (did you mean update.lr?); there is no setting update.nonesuch"
    )


def test_a_recipe_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(UsageError, match="demo"):
        load_recipe("nonesuch")


def test_the_same_settings_are_the_same_run_and_any_change_is_another() -> None:
    assert run_name(load_recipe("demo")) == run_name(load_recipe("demo"))
    assert run_name(load_recipe("demo")) != run_name(load_recipe("demo", ["update.lr=1.25e-4"]))


def test_an_override_changes_one_stage_in_one_round() -> None:
    recipe = load_recipe("demo").model_copy(
        update={"overrides": (Override(stage="score", round=2, changes={"max_error_frac": 0.5}),)}
    )
    assert stage_config(recipe, "score", 2, recipe.score).max_error_frac == 0.5
    assert stage_config(recipe, "score", 3, recipe.score).max_error_frac == 0.05
    assert stage_config(recipe, "update", 2, recipe.update) == recipe.update


def test_a_recipe_whose_rewards_can_say_nothing_of_correctness_is_refused() -> None:
    with pytest.raises(UsageError, match=r"suite heldout needs to know which answers are correct.*\(format\)"):
        load_recipe("demo", ['score.rewards=[{name="format"}]'])
    assert load_recipe("demo", ['score.rewards=[{name="format"}]', "score.correct_at=1.0"]).score.correct_at == 1.0
    apart = ['score.rewards=[{name="format"}]', 'evaluate.score.rewards=[{name="numeric"}]']
    with pytest.raises(UsageError, match="the wave escalate needs to know which answers are correct"):
        load_recipe("demo", apart)
    with pytest.raises(UsageError, match="difficulty needs to know which answers are correct"):
        load_recipe("demo", [*apart, "escalate=[]"])
    accepted = load_recipe("demo", [*apart, "escalate=[]", "difficulty.max_unjudged_frac=1"])
    assert accepted.score.rewards[0].name == "format"
    changed = Override(stage="score", round=2, changes={"rewards": [{"name": "format"}]})
    with pytest.raises(UsageError, match="needs to know which answers are correct"):
        refuse_unjudged(load_recipe("demo").model_copy(update={"overrides": (changed,)}))


@given(st.integers(-1000, 1000))
def test_integers_are_read_as_integers(value: int) -> None:
    assert toml_value(str(value)) == value


def test_dotted_keys_index_lists() -> None:
    body = {"rewards": [{"name": "math", "weight": 1.0}]}
    set_dotted(body, "rewards.0.weight", 2.0)
    assert body == {"rewards": [{"name": "math", "weight": 2.0}]}


def test_filters_rewards_and_mappings_are_read_as_documented(tmp_path: Path) -> None:
    parsed = parse_filter("pass_rate:low=0.1,high=0.9")
    assert (parsed.name, parsed.settings) == ("pass_rate", {"low": 0.1, "high": 0.9, "unmeasured": "keep"})
    assert (parse_reward("format=0.25").name, parse_reward("format=0.25").weight) == ("format", 0.25)
    assert mapping(["question=prompt"]) == {"question": "prompt"}
    source = tmp_path / "mine.py"
    source.write_text("def f(rows):\n    return [1.0 for _ in rows]\n")
    own = parse_reward(f"{source}:f=0.5")
    assert (own.name, own.weight) == (f"{source.resolve()}:f", 0.5)


@pytest.mark.parametrize("text", ["pass_rate:low", "pass_rate:low=0.1,high"])
def test_a_filter_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not k=v"):
        parse_filter(text)


def test_a_reward_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match=r"there is no file .*nowhere\.py"):
        check_stage(SCORE, ScoreConfig(rewards=(parse_reward("nowhere.py:f"),)), {})


def test_a_run_that_ends_within_its_warm_up_is_remarked_on() -> None:
    def of(rounds: int, **update: int) -> list[str]:
        recipe = load_recipe(
            "demo", ["curate.draw=8", "update.warmup_steps=15", *(f"update.{k}={v}" for k, v in update.items())]
        )
        return warm_up_remark(recipe, rounds)

    (remark,) = of(3)
    assert remark.endswith("and it takes about 3")
    assert "reached at optimiser step 15 (update.warmup_steps)" in remark
    for update, steps in (({"epochs": 4}, 12), ({"minibatch_groups": 3}, 9), ({"minibatch_groups": 2}, 12)):
        assert "".join(of(3, **update)).endswith(f"it takes about {steps}")
    assert of(15) == of(0) == of(3, warmup_steps=2) == []


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


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"shapes": ["win_rate"]},
            "the shape win_rate reads the column reward of rows of the use judge, which nothing",
        ),
        ({"advantage": "spo"}, r"advantage spo needs spo\.value, and the recipe has no tracker spo"),
    ],
)
def test_what_nobody_makes_for_a_shape_or_an_advantage_is_refused_before_anything_starts(
    tmp_path: Path, changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_settings(load_recipe("demo", {f"update.{name}": value for name, value in changes.items()}), tmp_path)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"echo": 3}, "here: echo: it must be a table"),
        ({"echo": {"times": 2}, "stages": 3}, "here: stages: it must be a table"),
        ({"score": {"judge": {"rewards": []}}, "scores": 3}, "here: scores: it must be a table"),
    ],
)
def test_a_section_that_is_no_table_is_refused_and_not_left_out(
    monkeypatch: pytest.MonkeyPatch, body: dict[str, object], message: str
) -> None:
    for module in (sections, reading):
        monkeypatch.setattr(module, "installed_names", lambda: ("echo",))
    with pytest.raises(UsageError, match=message):
        parse_recipe({"name": "one", **body}, "here")
