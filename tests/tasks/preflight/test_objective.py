"""Parts of an objective that do not go together are refused before anything starts."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gradus.data.errors import UsageError
from gradus.flows.recipe.checking import check_recipe
from gradus.flows.recipe.reading import load_recipe
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.preflight.abilities import check_objective

DISCO = {"advantage": "disco", "loss": "reinforce", "aggregation": "sequence_mean"}
TBRM = {"advantage": "reward", "loss": "tbrm", "aggregation": "sequence_mean"}
TERMS = [{"loss": "clip", "rows": {"origin": "own"}}, {"loss": "k3", "coefficient": 0.1}]
RIGHT: list[dict[str, Any]] = [
    *({}, DISCO, TBRM, {"loss": "distil"}, {"advantage": "gae"}, {"kl_coef": 0.1, "entropy_coef": -0.01}),
    {"advantage": "reward"},
    {"terms": TERMS},
    {"terms": [*TERMS, {**TBRM, "rows": {"origin": "x"}}]},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"advantage": "disco"}, "disco returns coefficients of log-probs, and the loss clip takes advantages"),
    ({**DISCO, "loss": "clip"}, "together they train another objective; set the loss to reinforce"),
    ({**DISCO, "aggregation": "token_mean"}, "disco is defined as a mean over rows, .* token_mean is one over tokens"),
    ({**TBRM, "advantage": "grpo"}, "the loss tbrm takes rewards as they stand.* or the advantage to reward"),
    ({**TBRM, "aggregation": "token_mean"}, "the loss tbrm is defined as a mean over rows.*to sequence_mean"),
    ({"origin_losses": [{"origin": "x", "loss": "tbrm"}]}, "grpo returns advantages, and the loss tbrm takes rewards"),
    ({**DISCO, "origin_losses": [{"origin": "x", "loss": "luffy"}]}, "disco returns .* the loss luffy takes adv"),
    ({"terms": [*TERMS, {"loss": "clip", "advantage": "disco"}]}, "disco returns coefficients"),
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
    (tmp_path / "mine.py").write_text(f"@component({kind!r}, needs=('nonesuch',))\ndef part(rows): ...\n")
    with pytest.raises(UsageError, match=f"{kind} mine.py:part needs nonesuch, which its kind is not handed"):
        check_objective(UpdateConfig.model_validate({kind: f"{tmp_path}/mine.py:part"}))


def test_an_advantage_that_reads_the_policy_is_made_every_step(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("@component('advantage', needs=('now.logp',))\ndef part(rows): ...\n")
    with pytest.raises(UsageError, match=r'needs now\.logp.*or declare when="step"'):
        check_objective(UpdateConfig.model_validate({"advantage": f"{tmp_path}/mine.py:part"}))


def test_a_component_of_an_earlier_version_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def part(loss, mask, row, totals): ...\n")
    with pytest.raises(
        ValueError, match=r"line 1: part takes \(loss, mask, row, totals\).*def part\(rows, \*, \.\.\.\)"
    ):
        check_objective(UpdateConfig.model_validate({"aggregation": f"{tmp_path}/mine.py:part"}))
    (tmp_path / "mine.py").write_text("@component('loss', goes_with={})\ndef part(rows): ...\n")
    with pytest.raises(ValueError, match=r"line 1: @component has no argument goes_with"):
        check_objective(UpdateConfig.model_validate({"loss": f"{tmp_path}/mine.py:part"}))


def test_short_spellings_and_a_list_of_terms_are_one_or_the_other() -> None:
    with pytest.raises(ValidationError, match="terms: the list is the whole objective; write kl_coef as one of its"):
        UpdateConfig.model_validate({"terms": TERMS, "kl_coef": 0.1})
    short = UpdateConfig.model_validate({"kl_coef": 0.1, "origin_losses": [{"origin": "x", "loss": "sft"}]})
    assert [(each.loss.name, each.coefficient) for each in short.objective] == [("clip", 1), ("sft", 1), ("k3", 0.1)]
    assert "terms" not in short.identified()


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
