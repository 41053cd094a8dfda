"""Settings of a recipe on which the results of its run depend."""

from collections.abc import Mapping

from gradus.data.records import JsonObject
from gradus.flows.recipe.config import Recipe

_NOT_LASTING = ("rounds", "guards", "save_state_every", "max_skipped_updates", "keep")
"""Settings that change no result, only the length of a run or the files that it keeps."""


def lasting(recipe: Recipe) -> JsonObject:
    """Return the settings that must stay the same while a run keeps its name: all that change its results."""
    body = recipe.model_dump(mode="json")
    return {key: value for key, value in body.items() if key not in _NOT_LASTING}


def same_run(stored: Recipe, recipe: Recipe) -> bool:
    """Return whether a run continues with a recipe; runs of earlier versions have no digests of their files."""
    return lasting(stored) == lasting(recipe if stored.files else recipe.model_copy(update={"files": {}}))


def changed_files(stored: JsonObject, body: JsonObject) -> list[str]:
    """Return the files whose content differs between two stored recipes; none if the recipes differ otherwise."""
    apart = {*_NOT_LASTING, "files"}
    one, other = ({key: value for key, value in each.items() if key not in apart} for each in (stored, body))
    held, holds = stored.get("files"), body.get("files")
    if one != other or not isinstance(held, Mapping) or not isinstance(holds, Mapping):
        return []
    return [name for name, digest in holds.items() if held.get(name) != digest]
