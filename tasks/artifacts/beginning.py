"""Rows of an earlier run, or of the user's files, that a training begins with: refused if it could not use them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gradus.data.arrays import bools, one_array, pc, positions
from gradus.data.curation.uses import LEARN
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import ROLLOUTS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import lineage


def refuse_foreign(store: Store, given: Ref, problems: Ref) -> None:
    """Raise BadInputError if none of the rows, hints or difficulty, is of a problem that is trained on."""
    theirs, ours = (store.read(ref, ["problem_id"]).column("problem_id") for ref in (given, problems))
    if not len(theirs) or not (positions(theirs, ours) >= 0).any():
        raise BadInputError(
            f"begin.{given.table}: none of the {len(theirs)} rows of {given} is of a problem that is trained on",
            hint="give those of the same problems",
        )


def refuse_unusable(
    store: Store, rollouts: Sequence[Ref], scores: Sequence[Ref], problems: Ref, policy: Ref, max_age: int
) -> None:
    """Raise BadInputError for rollouts that the first round could not take up again.

    They are learned from, of problems that are trained on, have scores, and come from the starting policy or one that
    it was made of by at most `max_age` updates.
    """
    rows = pa.concat_tables(
        [store.read(ref, ["rollout_id", "problem_id", "policy", "use"]) for ref in rollouts], promote_options="default"
    )
    judged = pa.concat_tables([store.read(ref, ["rollout_id"]) for ref in scores])
    known = store.read(problems, ["problem_id"]).column("problem_id")
    names = rows.column("rollout_id")
    use = pc.fill_null(ROLLOUTS.column(rows, "use"), LEARN)
    for odd, what, hint in (
        (~bools(pc.equal(use, LEARN)), "is of another use than learning", "rows that its updates learned from"),
        (
            positions(rows.column("problem_id"), known) < 0,
            "is of a problem that is not trained on",
            "the same problems",
        ),
        (positions(names, judged.column("rollout_id")) < 0, "has no score in begin.scores", "their scores"),
    ):
        if odd.any():
            first = names[int(np.argmax(odd))].as_py()
            raise BadInputError(f"begin.rollouts: rollout {first} {what}", hint=f"give rollouts of a run with {hint}")
    policies = pa.array([*lineage(store, policy, max_age)])
    if not np.asarray(pc.is_in(one_array(rows.column("policy")), value_set=policies)).any():
        raise BadInputError(
            f"begin.rollouts: no rollout was sampled by {policy}, or by one of the {max_age} policies before it",
            hint="begin with the policy of that run (policy = ...), or raise update.max_age",
        )
