"""Evaluations against the verdicts that they count."""

from collections.abc import Sequence

import numpy as np

from gradus.data.arrays import bools, ints, nulls, positions
from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.comparing.trainings import Training


def recount(trainings: Sequence[Training]) -> int:
    """Count the verdicts of every evaluation of trainings in its scores; return how many evaluations there are.

    Raise BadInputError if an evaluation has other counts than its scores.
    """
    found = {str(ref): (t.store, ref) for t in trainings for ref in t.evaluations.values()}
    for store, ref in found.values():
        _refuse_other_counts(store, ref)
    return len(found)


def _refuse_other_counts(store: Store, evaluation: Ref) -> None:
    table = store.read(evaluation, ["problem_id", "n", "k"])
    n, k = np.zeros((2, table.num_rows), dtype=np.int64)
    for text in store.manifest(evaluation).parents.get("scores", []):
        scores = store.read(Ref.parse(text), ["problem_id", "correct"])
        at = positions(scores.column("problem_id"), table.column("problem_id"))
        judged = ~nulls(scores.column("correct"))
        n += np.bincount(at[judged], minlength=len(n))
        k += np.bincount(at[judged & bools(scores.column("correct"))], minlength=len(k))
    if (n != ints(table.column("n"))).any() or (k != ints(table.column("k"))).any():
        raise BadInputError(
            f"{evaluation} does not count the verdicts of its scores", hint="evaluate again: gradus rerun RUN evaluate"
        )
