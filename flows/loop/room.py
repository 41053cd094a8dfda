"""Selection of the rounds of a training whose checkpoints keep their weights and train state."""

from collections.abc import Iterable, Mapping

from gradus.data.lake.store import Ref
from gradus.flows.recipe.config import Recipe


def made_by_round(models: Mapping[int, Ref]) -> dict[int, Ref]:
    """Return the checkpoints that a run made, by round; `models` are those after every round, from the beginning on."""
    first: dict[Ref, int] = {}
    for index, ref in models.items():
        first.setdefault(ref, index)  # a round that was skipped made none
    return {index: ref for ref, index in first.items() if ref != models[0]}


def kept_rounds(recipe: Recipe, rounds: Iterable[int], best: int | None) -> tuple[set[int], set[int]]:
    """Return the rounds whose checkpoints keep their weights, and those that keep their train states.

    `best` is the best of them so far, if one was chosen.

    The newest train state that was saved stays, and the weights that it belongs to, so that a killed run
    continues from there.
    """
    known = sorted(rounds)
    saved = [index for index in known if index % recipe.save_state_every == 0]
    newest = {*known[-1:], *saved[-1:]}
    goes_back = {best} if best is not None and any(guard.then == "back" for guard in recipe.guards) else set[int]()
    if recipe.keep is None:
        return set(known), {*newest, *saved, *goes_back}
    landmarks = recipe.keep.landmarks(known)
    weights = {*recipe.keep.weights(known, best), *newest, *goes_back}
    return weights, {*newest, *goes_back, *(landmarks & set(saved))}
