"""Settings that are numbers or switches, with values that are none."""

from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel

from gradus.components.chosen import Chosen
from gradus.components.settings import Config
from gradus.flows.recipe.config import Recipe
from gradus.tasks.stages.registry import STAGES
from tests.faults.malformed.program import INPUTS, Case

VERBS = ("ingest", "hint", "curate", "rollout", "score", "update", "warmstart")
FREE = ("seed", "round")
"""Whole numbers that may be as large as they like, and below 0."""


def numbers_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type, Any]]:
    """Every setting of a model that is one number or a switch: its key, its type, its field."""
    for name, field in model.model_fields.items():
        kinds = [kind for kind in (get_args(field.annotation) or (field.annotation,)) if isinstance(kind, type)]
        for kind in kinds:
            if kind in (int, float, bool):
                yield f"{prefix}{name}", kind, field
            elif issubclass(kind, Config) and not issubclass(kind, Chosen) and field.default_factory is not None:
                yield from numbers_of(kind, f"{prefix}{name}.")


def numbers() -> Iterator[Case]:
    """Numbers that are booleans, fractions, out of all bounds, or none."""
    for verb in VERBS:
        for key, kind, _ in numbers_of(STAGES[verb].settings):
            last = key.rpartition(".")[2]
            wrong: list[str] = {int: ["true", "1.5", "nan", "many"], float: ["true", "nan", "inf"], bool: ["2", "0.5"]}[
                kind
            ]
            if kind is int and last not in FREE:
                wrong += ["1000000000000", "-1"]
            for value in wrong:
                yield Case(f"{verb} --set {key}={value}", (verb, *INPUTS[verb], "--set", f"{key}={value}"))
    for key, kind, _ in numbers_of(Recipe):
        wrong = (
            ["true"]
            if kind is float
            else ["1000000000000"]
            if kind is int and key.rpartition(".")[2] not in FREE
            else []
        )
        for value in wrong:
            if key.count(".") < 2 and not key.startswith(("update.", "rollout.", "score.")):
                yield Case(f"train --set {key}={value}", ("train", "demo", "--set", f"{key}={value}"))
