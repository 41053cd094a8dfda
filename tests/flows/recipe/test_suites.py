"""Evaluation suites of a recipe: both forms of the table, what a suite inherits, what is refused at once."""

from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import UsageError
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.reading import load_recipe, parse_recipe
from gradus.flows.recipe.suites import EvaluationPlan, Suite
from gradus.models.templates import PromptConfig
from gradus.tasks.config.curation import SampleConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import EvaluateConfig, ScoreConfig

OWN = """
from gradus.components import component

@component("wave", needs=("group", "pass_rate"))
def hard(round, rng):
    return None

@component("shape", needs=("spo.value",))
def valued(rows):
    return {}
"""


def plan(**settings: Any) -> EvaluationPlan:
    return parse_recipe({"name": "x", "evaluate": settings}, "x.toml").evaluate


def test_a_recipe_of_one_suite_without_a_name_means_what_it_meant() -> None:
    old = plan(name="mine", problems="mine.jsonl", every=3, sample={"n": 4}, report={"ks": [1, 4]})
    report = EvaluateConfig(ks=(1, 4))
    (suite,) = old.suites
    assert suite == Suite(name="mine", problems="mine.jsonl", every=3, sample=SampleConfig(n=4), report=report)
    assert (old.main, old.selection, old.purpose(suite)) == (suite, suite, "eval")
    assert plan().suites == plan(problems="bundled:heldout").suites == (Suite(),)


def test_keys_beside_the_suites_hold_for_those_that_do_not_set_them() -> None:
    both = plan(
        every=2,
        sample={"n": 16},
        suites=[
            {"name": "aime", "problems": "a.jsonl", "score": {"rewards": [{"name": "math"}]}, "seed": 5},
            {"name": "quick", "problems": "q.jsonl", "every": 1, "sample": {"n": 1}, "report": {"ks": [1]}},
        ],
    )
    aime, quick = both.suites
    assert [(s.every, s.sample.n, s.seed, s.name) for s in both.suites] == [
        (2, 16, 5, "aime"),
        (1, 1, 0, "quick"),
    ]
    assert (aime.report.ks, quick.report.ks) == ((1, 8), (1,))
    assert isinstance(aime.score, ScoreConfig)
    assert quick.score is None
    assert [both.purpose(suite) for suite in both.suites] == ["eval", "eval-quick"]


def test_a_suite_prompts_and_stops_as_training_does_unless_it_says_otherwise() -> None:
    training = RolloutConfig(prompt=PromptConfig(system="add"), stop=("\n",), top_k=5)
    quiet, own = plan(
        sample={"max_tokens": 40},
        suites=[
            {"name": "quiet"},
            {"name": "own", "sample": {"max_tokens": 7}, "stop": [], "prompt": {"template": "{question}?"}},
        ],
    ).suites
    assert quiet.rollout(training) == training
    assert own.rollout(training) == RolloutConfig(prompt=PromptConfig(template="{question}?"), top_k=5)
    assert (quiet.sample.max_tokens, own.sample.max_tokens) == (40, 7)
    assert not {"prompt", "stop"} & set(quiet.model_dump(mode="json"))
    assert Suite.model_validate(own.model_dump(mode="json")) == own


@pytest.mark.parametrize(
    ("select", "every", "flags", "reported", "selection"),
    [
        ("", 0, (None, None), ["a", "b"], None),
        ("", 2, (None, None), ["a", "b"], "a"),
        ("b", 2, (None, None), ["a"], "b"),
        ("a", 0, (None, None), ["b"], "a"),
        ("b", 0, (None, True), ["a", "b"], "b"),
        ("last", 2, (None, None), ["a", "b"], None),
        ("last", 0, (None, False), ["a"], None),
    ],
)
def test_the_suite_that_selects_is_not_reported_unless_it_says_so(
    select: str, every: int, flags: tuple[bool | None, bool | None], reported: list[str], selection: str | None
) -> None:
    suites = [{"name": n, "reported": f} for n, f in zip("ab", flags, strict=True)]
    found = plan(select=select, every=every, suites=suites)
    assert [suite.name for suite in found.reported] == reported
    assert (found.selection.name if found.selection else None) == selection
    assert found.purpose(found.reported[0]) == "eval"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suites": [{"name": "a"}, {"name": "a"}]}, "two suites are called 'a'"),
        ({"suites": [{"name": "../a"}]}, "evaluate.suites.0.name"),
        ({"suites": [{"name": "reward"}]}, "'reward' has another meaning"),
        ({"name": "last"}, "'last' has another meaning"),
        ({"select": "validaton"}, r"select = 'validaton' names none of the suites \(heldout\)"),
        ({"select": "heldout"}, "no suite is reported"),
        ({"suites": []}, "no suite is reported"),
        (
            {"sample": {"n": 4}},
            "pass@8 needs 8 samples of each problem, and n is 4: set sample.n = 8, or report.ks =",
        ),
        ({"suites": [{"name": "a"}, {"name": "b", "sample": {"n": 1}}]}, "evaluate.suites.1: pass@8 needs 8 samples"),
        ({"sample": {"n": 0}}, "evaluate.sample.n: it must be greater than or equal to 1"),
        ({"report": {"ks": [8]}}, r"ks = \[8\] must hold 1"),
        ({"report": {"ks": []}}, "evaluate.report.ks: it has too few entries"),
        (
            {"suites": [{"name": "a", "evry": 1}]},
            "no setting evaluate.suites.0.evry; did you mean evaluate.suites.0.ever",
        ),
        (
            {"waves": [{"name": "rethink", "from_round": 2}]},
            "the wave rethink has from_round or until, and an evaluation has no rounds",
        ),
        (
            {"waves": ["rethink", {"name": "rethink", "frac": 0.5}]},
            "two functions of the suite heldout are called rethink; rename one",
        ),
        (
            {"suites": [{"name": "a", "waves": ["rethink"]}, {"name": "a-b"}]},
            "the suite a-b is called as stages of the suite a are; rename one",
        ),
        ({"shape": "best"}, "there is no setting evaluate.shape"),
        (3, "evaluate: it must be"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused_when_it_is_read(settings: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_recipe({"name": "x", "evaluate": settings}, "x.toml")


def test_a_suite_whose_shapes_take_some_rows_reports_one_of_each_problem_unless_it_says_otherwise() -> None:
    found = plan(suites=[{"shapes": ["best"]}, {"name": "b", "shapes": ["best"], "report": {"ks": [1, 2]}}])
    assert [suite.report.ks for suite in found.suites] == [(1,), (1, 2)]
    waved = plan(sample={"n": 1}, waves=["rethink"], report={"ks": [1, 2]})  # waves may add rows
    assert waved.main.is_shaped
    assert "waves" not in plan().main.model_dump()


def test_what_only_a_training_has_is_refused_in_a_suite_before_anything_starts(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    for settings, message in (
        ({"waves": ["escalate"]}, "the wave escalate needs hint, and an evaluation has no hints"),
        ({"waves": ["replay"]}, "the wave replay needs stored, and an evaluation has no rollouts of earlier rounds"),
        ({"waves": ["given"]}, "the wave given needs traces, and an evaluation has no texts that are given"),
        ({"waves": [f"{file}:hard"]}, "the wave own.py:hard needs pass_rate, and an evaluation has no difficulty"),
        ({"shapes": [f"{file}:valued"]}, "the shape own.py:valued needs spo.value, and it has no measure spo"),
        ({"shapes": ["win_rate"]}, "the shape win_rate reads the column reward of rows of the use judge, which"),
        ({"shapes": [{"name": "best", "column": "judge: reward"}]}, "the shape best goes by a column of its own rows"),
        ({"shapes": [{"name": "best", "column": "nothing"}]}, "shape best needs nothing, which its kind is not handed"),
        ({"measures": [{"name": "likelihood", "role": "judge"}]}, "measure likelihood: role = 'judge' is no role of"),
    ):
        body = {"name": "x", "trackers": ["spo"], "evaluate": settings}
        with pytest.raises(UsageError, match=f"^the suite heldout: {message}"):
            check_recipe(parse_recipe(body, "x.toml"), tmp_path)


def test_a_stored_recipe_is_read_as_the_same_recipe() -> None:
    recipe = parse_recipe(
        {"name": "x", "evaluate": {"select": "v", "suites": [{"name": "a"}, {"name": "v", "every": 1}]}}, "x"
    )
    assert parse_recipe(recipe.model_dump(mode="json"), "run.json") == recipe


def test_set_reaches_a_suite_in_either_form(tmp_path: Path) -> None:
    assert load_recipe("demo", ["evaluate.every=3"]).evaluate.main.every == 3
    file = tmp_path / "two.toml"
    file.write_text('name = "two"\n[[evaluate.suites]]\nname = "a"\n[[evaluate.suites]]\nname = "b"\n')
    found = load_recipe(str(file), ["evaluate.suites.1.every=3", "evaluate.seed=7", "evaluate.select=b"]).evaluate
    assert [(s.every, s.seed) for s in found.suites] == [(0, 7), (3, 7)]
    assert found.selection == found.suites[1]
