"""Generating ahead: what an overlapping run does at once, and what it changes in a recipe.

The next round is always sampled by the policy that the running update began with, so its rollouts are one update old
whichever of the two ends first, and the run comes to the same policy however it is disturbed.
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
    """The recipe as it is run: one that overlaps lets its updates take rollouts one update old, and corrects them."""
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
    """Both results: `first` in this thread, `second` in one that knows this one's Prefect flow run.

    Where either fails, or Ctrl-C comes, `halt` is called to end the other; both have ended when the first failure is
    raised.
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
