"""Sections of a recipe whose written form differs from the stored one."""

from collections.abc import Collection, Mapping
from typing import Any

from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.stages.registry import installed_names

READABLE: Mapping[str, tuple[str, ...]] = {
    "start": ("problems", "policy"),
    "round": ("problems", "policy", "plan", "rollouts", "scores", "difficulty"),
}
"""The roles that a stage of a package may read, by where it runs."""


def of_packages(body: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """Return a recipe's body whose sections called as a stage of an installed package are under `stages`.

    Their values replace stored ones.
    """
    theirs = {name: body[name] for name in installed_names() if name in body and name not in fields}
    if not theirs or not all(isinstance(each, Mapping) for each in theirs.values()):
        return {key: value for key, value in body.items() if key not in theirs}
    stored = body.get("stages", {})
    stages = {**stored, **{name: {**stored.get(name, {}), **own} for name, own in theirs.items()}}
    return {**{key: value for key, value in body.items() if key not in theirs}, "stages": stages}


def of_uses(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's body whose tables of `score` that are none of its settings are under `scores`.

    Their values replace stored ones.
    """
    score = body.get("score")
    if not isinstance(score, Mapping):
        return dict(body)
    uses = {
        name: value
        for name, value in score.items()
        if isinstance(value, Mapping) and name not in ScoreConfig.model_fields
    }
    if not uses:
        return dict(body)
    stored = body.get("scores", {})
    own = {name: value for name, value in score.items() if name not in uses}
    merged = {name: {**stored.get(name, {}), **value} for name, value in uses.items()}
    return {**body, "score": own, "scores": {**stored, **merged}}
