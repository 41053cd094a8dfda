"""What `compare --tune` is asked for: grids of values, and what is refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import UsageError
from gradus.flows.loop.comparing.budget import Asked
from gradus.flows.loop.comparing.methods import checked, tried_of, tuning_of
from gradus.flows.loop.variants import methods_of
from gradus.tasks.config.settings import Home

LR = "update.lr=1e-5, 3e-5"


def test_several_settings_make_all_combinations_and_commas_in_brackets_part_nothing(tmp_path: Path) -> None:
    tried = tried_of([LR, "escalate=[1,2],[]"], [])
    assert tried == {"update.lr": ["1e-5", "3e-5"], "escalate": ["[1,2]", "[]"]}
    tuning = tuning_of(methods_of(tmp_path, ["demo"], []), tried, range(3, 8), 2)
    assert [(v.recipe.update.lr, v.recipe.escalate) for v in tuning.methods] == [
        (1e-5, (1, 2)),
        (1e-5, ()),
        (3e-5, (1, 2)),
        (3e-5, ()),
    ]
    assert tuning.methods[1].name == "demo update.lr=1e-5 escalate=[]"
    assert list(tuning.seeds) == [8, 9]  # those after the seeds of the comparison
    assert all(run.startswith("demo-") and len(runs) == 2 for runs in tuning.runs().values() for run in runs)


def test_problems_to_tune_on_are_the_main_suite_of_tuning_alone(tmp_path: Path) -> None:
    tuning = tuning_of(methods_of(tmp_path, ["demo"], []), tried_of([LR], []), range(5), on="own.jsonl")
    main = tuning.methods[0].recipe.evaluate.main
    assert (main.problems, main.name) == ("own.jsonl", "tuning")
    assert tuning.compared["demo"][0].recipe.evaluate.main.problems != "own.jsonl"


@pytest.mark.parametrize(
    ("texts", "sets", "said"),
    [
        (["update.lr"], [], "--tune update.lr has no values"),
        (["update.lr=1e-5"], [], "--tune update.lr has one value"),
        (["update.lr=1e-5,,2"], [], "an empty value"),
        (["escalate=[1,[]"], [], "a bracket that does not close"),
        ([LR], ["update.lr=1"], "update.lr is both tuned and set"),
        (["seed=1,2,3,4,5,6,7", "rounds=1,2,3,4,5"], [], "35 combinations of values, more than 32"),
    ],
)
def test_what_cannot_be_tuned_is_refused(texts: list[str], sets: list[str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        tried_of(texts, sets)
    assert said in str(refused.value)


@pytest.mark.parametrize("how", [{"tune_on": "own.jsonl"}, {"tune_seeds": 2}])
def test_how_to_tune_without_values_is_refused(tmp_path: Path, how: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="there is nothing to tune"):
        checked(Home(tmp_path), Asked(["demo", "tiny"], **how))


@pytest.mark.parametrize(
    ("text", "on", "said"),
    [
        ("seed=1,2", "", "are the same method"),
        ("update.lr=1e-5,0.00001", "", "are the same method"),
        ("update.nonsense=1,2", "", "nonsense"),
        ("evaluate.suites.0.sample.n=8,16", "", "evaluated in different ways"),
        (LR, "bundled:heldout", "these problems are evaluated in the end"),
        (LR, "bundled:train", "these problems are trained on"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path: Path, text: str, on: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        tuning_of(methods_of(tmp_path, ["demo"], []), tried_of([text], []), range(5), on=on)
    assert said in str(refused.value)
