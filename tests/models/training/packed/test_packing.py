"""Packs and padded batches: every row once, within the budget; what a pack holds, worked out by hand."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradus.models.objectives.ragged import Ragged, distinct
from gradus.models.training.packed.packing import best_fit, pack_of, packs, padded_batches
from gradus.models.training.packed.trees import tree_blocks


def divided(prompts: list[int], prompt_tokens: dict[int, int], completions: list[int], budget: int) -> list[list[int]]:
    lengths = torch.tensor([prompt_tokens[p] for p in prompts], dtype=torch.int64)
    found = packs(
        torch.tensor(prompts, dtype=torch.int64), lengths, torch.tensor(completions, dtype=torch.int64), budget
    )
    return [rows.tolist() for rows in found]


def test_a_division_worked_out_by_hand() -> None:
    # Prompt 0 with rows 0, 2: 3 + 4 + 2 = 9 tokens; prompt 1 with row 1: 3; prompt 2 with row 3: 9, which 1 more fits.
    assert divided([0, 1, 0, 2], {0: 3, 1: 2, 2: 4}, [4, 1, 2, 5], 12) == [[0, 2, 1], [3]]
    # With 8 tokens prompt 0 is encoded in two packs, and a row longer than the budget is alone.
    assert divided([0, 1, 0, 2], {0: 3, 1: 2, 2: 4}, [4, 1, 2, 5], 8) == [[3], [0], [2, 1]]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30)), max_size=40),
    st.lists(st.integers(1, 30), min_size=5, max_size=5),
    st.integers(1, 90),
)
@settings(max_examples=80)
def test_packs_hold_every_row_once_within_the_budget(
    rows: list[tuple[int, int]], prompt_tokens: list[int], budget: int
) -> None:
    prompts, completions = [p for p, _ in rows], [c for _, c in rows]
    found = divided(prompts, dict(enumerate(prompt_tokens)), completions, budget)
    assert sorted(row for pack in found for row in pack) == list(range(len(rows)))
    sizes: list[int] = []
    for pack in found:
        runs = [i for i, row in enumerate(pack) if i == 0 or prompts[row] != prompts[pack[i - 1]]]
        sizes.append(sum(prompt_tokens[prompts[pack[i]]] for i in runs) + sum(completions[row] for row in pack))
        assert len(pack) == 1 or sizes[-1] <= budget
        assert len(runs) == len({prompts[row] for row in pack})  # no prompt twice in a pack
    # Two packs that would fit into one were not left apart, except the parts of one prompt.
    smallest = sorted(sizes)[:2]
    assert len(smallest) < 2 or sum(smallest) > budget or len(found) <= len(rows)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 120))
@settings(max_examples=50)
def test_bins_hold_every_item_once_and_are_few(sizes: list[int], capacity: int) -> None:
    bins = best_fit(sizes, capacity)
    assert sorted(i for each in bins for i in each) == list(range(len(sizes)))
    assert all(len(each) == 1 or sum(sizes[i] for i in each) <= capacity for each in bins)
    # No two bins fit into one: else the later one's items would have gone into the earlier.
    loads = sorted(sum(sizes[i] for i in each) for each in bins)
    assert len(loads) < 2 or loads[0] + loads[1] > capacity


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
@settings(max_examples=50)
def test_padded_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = [rows.tolist() for rows in padded_batches(torch.tensor(lengths, dtype=torch.int64), budget)]
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    for rows in batches:
        assert len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= budget
    flat = [lengths[i] for rows in batches for i in rows]
    assert flat == sorted(flat)


@pytest.mark.parametrize(
    ("divide", "message"),
    [
        (lambda: padded_batches(torch.tensor([1]), 0), "holds nothing"),
        (lambda: packs(torch.tensor([0]), torch.tensor([1]), torch.tensor([1]), 0), "holds nothing"),
        (lambda: packs(torch.tensor([0]), torch.tensor([0]), torch.tensor([1]), 9), "nothing predicts its first token"),
    ],
)
def test_a_budget_of_nothing_or_a_row_without_prompt_is_refused(
    divide: Callable[[], list[Tensor]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        divide()


def test_a_pack_worked_out_by_hand() -> None:
    prompts = Ragged.of([[5, 6], [7], [5, 6], [5, 6]])
    completions = Ragged.of([[1, 2], [3], [], [4]])
    pack = pack_of(torch.tensor([0, 2, 3, 1]), distinct(prompts), prompts, completions)
    assert pack.input_ids.tolist() == [5, 6, 1, 2, 4, 7, 3]
    assert pack.positions.tolist() == [0, 1, 2, 3, 2, 0, 1]
    assert pack.completions.values.tolist() == [1, 2, 4, 3]
    assert pack.predictors.tolist() == [1, 2, 1, 5]
    assert [p.tolist() for p in pack.prompts] == [[5, 6], [5, 6], [5, 6], [7]]
    blocks = tree_blocks(pack.spans, pack.positions)
    causal = sorted(
        row[real].tolist() for each in blocks.causal for row, real in zip(each.index, each.real, strict=True)
    )
    assert causal == [[0, 1], [2, 3], [4], [5, 6]]
    shared = [(queries.tokens.tolist(), prefix.tokens.tolist()) for queries, prefix in blocks.shared]
    assert shared == [([2, 3, 4], [0, 1])]


def test_common_beginnings_worked_out_by_hand() -> None:
    alike, other = list(range(40, 72)), list(range(50, 66))
    prompts = Ragged.of([[5, 6]] * 5 + [[7]])
    completions = Ragged.of([[*alike, 1, 2], [3], [*alike, 1, 2], [*alike[:16], *other], [], alike])
    pack = pack_of(torch.arange(6), distinct(prompts), prompts, completions)
    # Sorted: [], [3], 16 + other, 32 + [1, 2] twice; the last prompt's completion is nobody else's.
    assert pack.rows.tolist() == [4, 1, 3, 0, 2, 5]
    assert pack.input_ids.tolist() == [5, 6, 3, *alike[:16], *other, *alike[16:], 1, 2, 1, 2, 7, *alike]
    assert pack.positions.tolist() == [
        0,
        1,
        2,
        *range(2, 18),
        *range(18, 34),
        *range(18, 34),
        34,
        35,
        34,
        35,
        *range(33),
    ]
    # The prompt, [3], 16 common to three, other, 16 common to two, their endings, the last row with its prompt.
    assert pack.spans.tolist() == [0, 2, 3, 19, 35, 51, 53, 55]
    assert [p.tolist() for p in Ragged(pack.predictors, pack.completions.offsets)][1:5] == [
        [1],
        [1, *range(3, 34)],
        [1, *range(3, 19), *range(35, 52)],
        [1, *range(3, 19), *range(35, 51), 53],
    ]
    shared = sorted(
        (keys[some].tolist(), queries[real].tolist())
        for bucket, prefix in tree_blocks(pack.spans, pack.positions).shared
        for queries, real, keys, some in zip(bucket.index, bucket.real, prefix.index, prefix.real, strict=True)
    )
    assert shared == [
        ([0, 1], list(range(2, 55))),
        (list(range(3, 19)), list(range(19, 55))),
        (list(range(35, 51)), list(range(51, 55))),
    ]


def test_fewer_common_tokens_than_pay_are_not_shared() -> None:
    prompts = Ragged.of([[5, 6]] * 2)
    completions = Ragged.of([[*range(15), 20], [*range(15), 21]])
    pack = pack_of(torch.arange(2), distinct(prompts), prompts, completions)
    assert pack.num_tokens == 2 + 16 + 16
