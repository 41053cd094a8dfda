"""Selection of the rounds of a training whose checkpoints keep their weights and train state."""

from collections.abc import Iterable
from dataclasses import dataclass

from gradus.flows.recipe.config import Recipe


@dataclass(frozen=True)
class KeptRounds:
    """Rounds whose checkpoints keep their weights, and rounds that keep their train states."""

    weights: set[int]
    states: set[int]


def kept_rounds(recipe: Recipe, rounds: Iterable[int], best: int | None) -> KeptRounds:
    """Return what stays after these rounds; `best` is the best of them so far, if one was chosen.

    The newest train state that was saved stays, and the weights that it belongs to, so that a run that is killed goes
    on from there.
    """
    known = sorted(rounds)
    saved = [index for index in known if index % recipe.save_state_every == 0]
    newest = {*known[-1:], *saved[-1:]}
    goes_back = {best} if best is not None and any(guard.then == "back" for guard in recipe.guards) else set[int]()
    if recipe.keep is None:
        return KeptRounds(set(known), {*newest, *saved, *goes_back})
    landmarks = recipe.keep.landmarks(known)
    weights = {*recipe.keep.weights(known, best), *newest, *goes_back}
    return KeptRounds(weights, {*newest, *goes_back, *(landmarks & set(saved))})
