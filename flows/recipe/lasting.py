"""Settings of a recipe on which the results of its run depend."""

from collections.abc import Mapping

from gradus.data.records import JsonObject
from gradus.flows.recipe.config import Recipe

_NOT_LASTING = ("rounds", "guards", "save_state_every", "max_skipped_updates", "keep")
"""Settings that change no result, only how far a run goes or what stays of it."""


def lasting(recipe: Recipe) -> JsonObject:
    """Return what of a recipe may not change while its run keeps its name: what its results depend on."""
    body = recipe.model_dump(mode="json")
    return {key: value for key, value in body.items() if key not in _NOT_LASTING}


def same_run(stored: Recipe, recipe: Recipe) -> bool:
    """Return whether a run continues with a recipe; what its files held is unknown of a run of an earlier version."""
    return lasting(stored) == lasting(recipe if stored.files else recipe.model_copy(update={"files": {}}))


def changed_files(stored: JsonObject, body: JsonObject) -> list[str]:
    """Return the files of two stored recipes that held something else; nothing if the recipes differ otherwise."""
    apart = {*_NOT_LASTING, "files"}
    one, other = ({key: value for key, value in each.items() if key not in apart} for each in (stored, body))
    held, holds = stored.get("files"), body.get("files")
    if one != other or not isinstance(held, Mapping) or not isinstance(holds, Mapping):
        return []
    return [name for name, digest in holds.items() if held.get(name) != digest]
