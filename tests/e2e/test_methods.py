"""Methods laid over the tiny recipe, two rounds each, by the real program in one home; all with `make test-methods`."""

import os
from collections.abc import Callable
from typing import Any

import pytest

from gradus.flows.recipe.overlays import overlay_files
from tests.e2e.conftest import RECIPE, Program

USUAL = ("evol_rl", "hpt", "pref_grpo", "riskpo", "seele", "spo", "vade", "vl_rethinker")
CHOSEN = tuple(sorted(overlay_files())) if os.environ.get("GRADUS_METHODS") == "all" else USUAL
SMALL = ("--rounds", "2", "--set", "evaluate.every=2", "--set", "curate.draw=8", "--set", "curate.sample.max_tokens=40")


@pytest.fixture(scope="module")
def methods(new_program: Callable[..., Program]) -> Program:
    return new_program()


@pytest.mark.parametrize("name", CHOSEN)
def test_a_method_trains_two_rounds(methods: Program, name: str) -> None:
    told: dict[str, Any] = methods.json("train", str(RECIPE), "--method", name, *SMALL, "--run", name)
    assert told["rounds"] == 2
    updates = [
        e for e in methods.events(name) if e["event"] == "stage_finished" and "skipped_updates" not in e["summary"]
    ]
    steps = sum(e["summary"].get("updates", 0) for e in updates)
    assert steps >= 1 or told["skipped_updates"] == 1
