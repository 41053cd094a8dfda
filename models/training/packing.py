"""Dividing rows into micro-batches: pure integers.

Left out: several rows in one sequence (block-diagonal attention); first-fit packing, which mixes lengths.
"""

from collections.abc import Sequence


def micro_batches(lengths: Sequence[int], budget_tokens: int) -> list[list[int]]:
    """Row indices in micro-batches whose padded size (rows x longest) stays within the budget, like lengths together.

    A row longer than the budget is a micro-batch of its own. Every row occurs exactly once.
    Raise ValueError if the budget or a length is not positive.

    >>> micro_batches([3, 9, 4, 3], 12)
    [[0, 3, 2], [1]]
    """
    if budget_tokens < 1:
        raise ValueError(f"a micro-batch of {budget_tokens} tokens holds nothing")
    if lengths and min(lengths) < 1:
        raise ValueError("a row without tokens cannot be put through a model")
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    batches: list[list[int]] = []
    for index in order:
        # Rows come in ascending length, so the newest row is the one that all others are padded to.
        if batches and (len(batches[-1]) + 1) * lengths[index] <= budget_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
