"""Parts of an objective that do not go together are refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import UsageError
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.config import load_recipe
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.preflight.objective import check_objective

DISCO = {"advantage": "disco", "loss": "reinforce", "aggregation": "sequence_mean"}
TBRM = {"advantage": "reward", "loss": "tbrm", "aggregation": "sequence_mean"}
RIGHT: list[dict[str, Any]] = [{}, DISCO, TBRM, {"loss": "distil"}, {"advantage": "gae"}]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({**DISCO, "loss": "clip"}, "with the loss clip another objective is trained; set update.loss=reinforce"),
    ({**TBRM, "advantage": "grpo"}, "with the advantage grpo another objective is trained; set update.advantage=rew"),
    ({"origin_losses": [{"origin": "x", "loss": "tbrm"}]}, "the loss tbrm is defined with the advantage reward"),
]


@pytest.mark.parametrize("settings", RIGHT)
def test_a_method_in_its_own_company_is_taken(settings: dict[str, Any]) -> None:
    check_objective(UpdateConfig.model_validate(settings))


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_a_method_in_another_is_refused_with_what_belongs_to_it(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_objective(UpdateConfig.model_validate(settings))


@pytest.mark.parametrize("kind", ["loss", "advantage", "aggregation"])
def test_a_component_that_needs_what_it_is_not_handed_is_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine.py").write_text(f"@component({kind!r}, needs=('nonesuch',))\ndef part(batch): ...\n")
    with pytest.raises(UsageError, match=f"{kind} mine.py:part needs nonesuch, which its kind is not handed"):
        check_objective(UpdateConfig.model_validate({kind: f"{tmp_path}/mine.py:part"}))


@pytest.mark.parametrize(
    "sets",
    [
        [f"update.{kind}={name}" for kind, name in TBRM.items()],
        ["update.advantage=reward"],
        ["escalate=[1]", 'overrides=[{stage="escalate", changes={"sample.n"=4}}]'],
        ["given={}", "update.origin_losses=[{origin='expert', loss='luffy'}]"],
    ],
)
def test_single_completions_are_enough_where_no_group_is_compared_or_others_join_it(
    tmp_path: Path, sets: list[str]
) -> None:
    check_recipe(load_recipe("demo", ["curate.sample.n=1", *sets]), tmp_path)
