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
    """Return a recipe's body with sections called as an installed package's stage under `stages`, over stored ones."""
    theirs = {name: body[name] for name in installed_names() if name in body and name not in fields}
    rest = {key: value for key, value in body.items() if key not in theirs}
    return {**rest, "stages": _added(body.get("stages", {}), theirs)} if theirs else rest


def of_uses(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's body with tables of `score` that are none of its settings under `scores`, over stored ones."""
    score = body.get("score")
    if not isinstance(score, Mapping):
        return dict(body)
    own = {key: each for key, each in score.items() if not isinstance(each, Mapping) or key in ScoreConfig.model_fields}
    uses = {name: value for name, value in score.items() if name not in own}
    return {**body, "score": own, "scores": _added(body.get("scores", {}), uses)} if uses else dict(body)


def _added(stored: Any, given: Mapping[str, Any]) -> Any:
    """Return stored tables with the values of given ones; what is no table is left for the recipe to refuse."""
    if not isinstance(stored, Mapping):
        return stored
    tables = (each for each in given if isinstance(given[each], Mapping) and isinstance(stored.get(each), Mapping))
    return {**stored, **given, **{name: {**stored[name], **given[name]} for name in tables}}
