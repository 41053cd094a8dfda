"""Generating ahead: the settings of a run that overlaps, and two stages computed at once.

The next round is always sampled by the policy that the running update began with, so its rollouts are one update old
whichever of the two ends first, and an interrupted run ends in the same policy.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from gradus.components.chosen import CorrectionConfig
from gradus.flows.recipe.config import Recipe
from gradus.tasks.config.learning import UpdateConfig

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")


def overlapping(recipe: Recipe) -> Recipe:
    """Return the recipe; one that overlaps accepts rollouts one update old and corrects for their age."""
    if not recipe.overlap:
        return recipe
    roles = {
        name: role
        if role.update is None
        else role.model_copy(update={"update": _corrected(role.update, recipe.overlap)})
        for name, role in recipe.roles.items()
    }
    return recipe.model_copy(update={"update": _corrected(recipe.update, recipe.overlap), "roles": roles})


def _corrected(update: UpdateConfig, overlap: int) -> UpdateConfig:
    changes: dict[str, object] = {"max_age": max(overlap, update.max_age)}
    if "correction" not in update.model_fields_set:
        changes["correction"] = CorrectionConfig(name="token_truncated")
    return update.model_copy(update=changes)


def run_concurrently(first: Callable[[], A], second: Callable[[], B], halt: Callable[[], None]) -> tuple[A, B]:
    """Run `first` in this thread and `second` in another of the same Prefect flow run; return both results.

    If either fails, or on Ctrl-C, `halt` is called to end the other; the first failure is raised once both have ended.
    """
    failures: list[BaseException] = []

    def watched(work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException as error:
            failures.append(error)
            halt()
            raise

    try:
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="gradus-ahead") as executor:
            beside = executor.submit(copy_context().run, watched, second)
            return watched(lambda: (first(), beside.result()))
    finally:
        if failures:
            raise failures[0] from None
