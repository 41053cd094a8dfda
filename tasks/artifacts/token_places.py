"""The characters of stored completions that each of their tokens holds, by the tokenizer of the policy that sampled."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Ints, nulls
from gradus.data.errors import BadInputError
from gradus.data.lake.manifest import CURE
from gradus.data.lake.schema import PLACES, ROLLOUTS
from gradus.data.lake.store import Ref, Store

TOKENS, TEXT = "completion_tokens", "completion"


def bounds_of(store: Store, ref: Ref, rows: pa.Table) -> list[tuple[Ints, Ints] | None]:
    """Return the first character of each token, and the one behind its last, of some rows of an artifact of rollouts.

    None for a row of text alone, or without a text. The policy that sampled is the one that the artifact's manifest
    names; BadInputError if it names none.
    """
    texts, tokens = rows.column(TEXT), ROLLOUTS.column(rows, TOKENS)
    there = np.flatnonzero(~(nulls(texts) | nulls(tokens)))
    found: list[tuple[Ints, Ints] | None] = [None] * rows.num_rows
    if not len(there):
        return found
    from gradus.models.policy import PolicyError, load_tokenizer  # noqa: PLC0415 - torch
    from gradus.models.token_bounds import token_bounds  # noqa: PLC0415 - torch

    try:
        tokenizer = load_tokenizer(store.path(_sampler(store, ref)))
    except PolicyError as error:
        raise BadInputError(str(error), hint=CURE) from None
    for row in there.tolist():
        found[row] = token_bounds(tokenizer, tokens[row].as_py(), texts[row].as_py())
    return found


def with_places(store: Store, refs: Sequence[Ref], parts: Sequence[pa.Table]) -> list[pa.Table]:
    """Return rollouts of some artifacts with the columns `token_starts` and `token_ends`, null for text alone."""
    found: list[pa.Table] = []
    for ref, part in zip(refs, parts, strict=True):
        bounds, placed = bounds_of(store, ref, part), part
        for side, name in enumerate(PLACES):
            values = [None if each is None else each[side] for each in bounds]
            placed = placed.append_column(name, pa.array(values, pa.list_(pa.int64())))
        found.append(placed)
    return found


def _sampler(store: Store, ref: Ref) -> Ref:
    policy = store.manifest(ref).parent("policy")
    if policy is not None and store.find(policy) is not None:
        return policy
    raise BadInputError(
        f"{ref} has tokens, and the policy whose tokenizer they are of is not there: no part of a text can be found",
        hint="take rollouts that `gradus rollout` made with a policy that is still in the lake, or mark nothing",
    )
