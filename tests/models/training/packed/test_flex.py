"""Attention of packs by flex_attention: visibility against a count by hand; values and gradients against padded rows.

torch refuses a gradient of flex_attention on a CPU although its own operations have one there; the check is taken away,
so that what is tested is the block structure. The fused kernel is tried by test_devices where there is a GPU.
"""

from typing import Any

import pytest
import torch
import torch.nn.attention.flex_attention
from hypothesis import settings
from transformers import AutoModelForCausalLM, MistralConfig

import gradus.models.training.packed.forward
from gradus.models.objectives.ragged import Ragged, distinct
from gradus.models.training.packed.flex import BLOCK, Visible, padded_ends
from gradus.models.training.packed.forward import form_of
from gradus.models.training.packed.packing import Pack, pack_of
from gradus.models.training.packed.trees import seen_until
from tests.models.training.packed.test_forward import BRANCHING, branching_pack, gradients
from tests.models.training.packed.test_logprobs import SIZES, tiny

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def attend_by_flex(patch: pytest.MonkeyPatch) -> None:
    """Attend on this CPU as on a GPU, operation by operation."""
    on_gpu = gradus.models.training.packed.forward._STRUCTURES["cuda"]
    patch.setitem(gradus.models.training.packed.forward._STRUCTURES, "cpu", on_gpu)
    patch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    patch.setattr(torch.nn.attention.flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def by_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attend so for a test."""
    attend_by_flex(monkeypatch)


def visible_by_hand(given_pack: Pack) -> torch.Tensor:
    """(T, T) bool: query t attends to key u, from the paths of the pack's rows alone."""
    total = given_pack.num_tokens
    seen = torch.zeros(total, total, dtype=torch.bool)
    predictors = given_pack.predictors.split(given_pack.completions.lengths.tolist())
    for prompt, predicted in zip(given_pack.prompts, predictors, strict=True):
        if not len(predicted):
            continue
        # The prompt stands whole before the token that predicts a first one, which is its last.
        last = int(predicted[0])
        path = [*range(last - len(prompt) + 1, last + 1), *predicted[1:].tolist()]
        for place, query in enumerate(path):
            seen[query, path[: place + 1]] = True
    return seen


def long_pack(*, trees: bool) -> Pack:
    """A pack of some hundred tokens: two prompts, completions that begin alike, one longer than two blocks."""
    trunk = [(7 * i) % 29 for i in range(3 * BLOCK)]
    prompts = [[(3 * i) % 29 for i in range(150)], [5, 6]]
    rows = [(0, trunk[:20]), (0, [*trunk[:40], 1, 2]), (0, trunk), (0, [9] * 5), (1, trunk[: BLOCK + 3]), (1, [4])]
    given_prompts = Ragged.of([prompts[at] for at, _ in rows])
    completions = Ragged.of([tokens for _, tokens in rows])
    return pack_of(torch.arange(len(rows)), distinct(given_prompts), given_prompts, completions, trees=trees)


@pytest.mark.parametrize("trees", [True, False])
def test_blocks_are_left_out_and_unmasked_exactly_where_a_count_by_hand_says_so(trees: bool) -> None:
    given_pack = long_pack(trees=trees)
    ends = padded_ends(seen_until(given_pack.spans, given_pack.positions))
    mask = Visible(ends).mask
    seen = torch.eye(len(ends), dtype=torch.bool)
    total = given_pack.num_tokens
    # The last token of a row predicts nothing, so it is on no path: it sees what the token before it sees, and itself.
    by_hand = visible_by_hand(given_pack)
    known = by_hand.any(1)
    seen[:total, :total][known] = by_hand[known]
    at = torch.arange(len(ends))
    found: Any = mask.mask_mod(None, None, at[:, None], at[None, :])  # type: ignore[arg-type]
    on_paths = torch.cat([known, torch.ones(len(ends) - total, dtype=torch.bool)])
    assert torch.equal(found[on_paths], seen[on_paths])
    assert int(found.sum(1).min()) >= 1
    blocks = found.view(len(ends) // BLOCK, BLOCK, -1, BLOCK).transpose(1, 2).flatten(2)
    whole, some = blocks.all(-1), blocks.any(-1)
    assert torch.equal(mask.to_dense()[0, 0].bool(), some)
    assert mask.full_kv_num_blocks is not None
    assert mask.full_kv_num_blocks[0, 0].tolist() == whole.sum(1).tolist()
    assert mask.kv_num_blocks[0, 0].tolist() == (some & ~whole).sum(1).tolist()
    assert (int(whole.sum()) > 0, bool(some.all())) == (True, False)


@pytest.mark.slow
@BRANCHING
@settings(max_examples=10)
def test_values_and_gradients_are_those_of_padded_rows(drawn: list[tuple[int, int, int, int]], min_shared: int) -> None:
    model, given_pack = tiny("qwen2").double(), branching_pack(drawn, min_shared)
    with pytest.MonkeyPatch.context() as patch:
        attend_by_flex(patch)
        found = gradients(model, given_pack, "packed")
    for ours, expected in zip(found, gradients(model, given_pack, "padded"), strict=True):
        assert float((ours - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.usefixtures("by_flex")
def test_long_packs_have_the_values_and_gradients_of_padded_rows() -> None:
    model = tiny("llama").double()
    given_pack = long_pack(trees=True)
    paired = zip(*(gradients(model, given_pack, form) for form in ("packed", "padded")), strict=True)
    for ours, expected in paired:
        assert float((ours - expected).abs().max()) <= 1e-5 * float(expected.abs().max())


@pytest.mark.usefixtures("by_flex")
def test_a_model_is_asked_whether_it_may_be_packed() -> None:
    assert form_of(tiny("qwen2")) == "packed"
    assert form_of(tiny("gemma2")) == "padded"
    windowed: Any = AutoModelForCausalLM.from_config(MistralConfig(**SIZES, sliding_window=4)).eval()
    assert form_of(windowed) == "padded"


def test_a_kernel_that_cannot_be_compiled_leaves_padded_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise torch._dynamo.exc.Unsupported("no compiler here")

    monkeypatch.setattr(gradus.models.training.packed.forward, "_packed", failing)
    assert form_of(tiny("qwen2")) == "padded"


def test_memory_that_runs_out_is_not_taken_for_a_kernel_that_cannot_be_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(gradus.models.training.packed.forward, "_packed", failing)
    with pytest.raises(torch.OutOfMemoryError):
        form_of(tiny("qwen2"))
