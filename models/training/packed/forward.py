"""Hidden states of a pack under a policy: end to end with shared prompts, or as padded rows.

End to end is the quick form; it needs attention that this package knows: block_attention on a CPU, flex on a GPU. What
an architecture does beyond attention (recurrence, biases of position, windows) can mix sequences that stand end to end,
so a model is asked first: a few short rows in both forms must agree. Padded rows, every prompt as often as it has
completions, are what any causal model computes, and are used wherever the quick form is not sure.
Everything is computed inside one call of the whole model, so that hooks of its root (FSDP2's, which gather the
parameters of embeddings, norm and head) see it.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException
from torch.nn import functional
from transformers import AttentionInterface, PreTrainedModel

from gradus.models.objectives.ragged import Ragged, spans
from gradus.models.training.packed.block_attention import Blocks
from gradus.models.training.packed.flex import Visible, padded_ends
from gradus.models.training.packed.packing import Pack, pack_of
from gradus.models.training.packed.trees import seen_until, tree_blocks

T = TypeVar("T")
Form = Literal["packed", "padded"]

_NAME = "gradus"
"""The attention's name in transformers."""
_AGREE = 1e-3
"""Largest relative difference of the two forms' hidden states on the rows of the test, in float32."""
_AGREE_EPS = 4
"""The same in a narrower number format, in units of its rounding; 1 was measured in bfloat16 with two layers."""


class UnsupportedAttentionError(RuntimeError):
    """An attention that is more than a softmax over all earlier tokens."""


def hidden_states(model: PreTrainedModel, pack: Pack, form: Form) -> Tensor:
    """Hidden states (M, D) of the tokens that predict the pack's completion tokens, on the model's device."""
    return with_hidden_states(model, pack, form, lambda hidden: hidden)


def with_hidden_states(model: PreTrainedModel, pack: Pack, form: Form, head: Callable[[Tensor], T]) -> T:
    """Return what `head` makes of the hidden states (M, D), computed inside the same call of the model.

    What it returns has to be tensors, or tuples of them: a hook of FSDP2 puts its own on those with a gradient.
    """
    decode = _packed if form == "packed" else _padded
    own = vars(model)
    before = own.get("forward")
    own["forward"] = lambda: head(decode(model, pack))
    try:
        return model()
    finally:
        del own["forward"]
        if before is not None:
            own["forward"] = before


def form_of(model: PreTrainedModel) -> Form:
    """Return the quickest form that is exact for this model."""
    if model.device.type not in _STRUCTURES:
        return "padded"
    embeddings: Any = model.get_input_embeddings()
    vocabulary = int(embeddings.weight.shape[0])
    prompts = Ragged.of([[1, 2, 3], [1, 2, 3], [2, 1], [3]])
    completions = Ragged.of([[3, 1, 2, 2], [2, 2], [1, 3, 1], [2]])
    trial = [Ragged(each.values % vocabulary, each.offsets) for each in (prompts, completions)]
    pack = pack_of(torch.arange(4), torch.tensor([0, 0, 1, 2]), *trial)
    with torch.no_grad():
        try:
            found, expected = hidden_states(model, pack, "packed"), hidden_states(model, pack, "padded")
        except (UnsupportedAttentionError, TorchDynamoException, TypeError, ValueError):
            # The second error is that of a kernel that cannot be compiled; out-of-memory errors are not caught.
            return "padded"
    agree = max(_AGREE, _AGREE_EPS * torch.finfo(found.dtype).eps)
    same = torch.allclose(found, expected, rtol=agree, atol=agree * float(expected.abs().max()))
    return "packed" if same else "padded"


def _packed(model: PreTrainedModel, pack: Pack) -> Tensor:
    device = model.device
    structure, num_tokens = _STRUCTURES[device.type](pack, device)

    def given(values: Tensor) -> Tensor:
        return functional.pad(values, (0, num_tokens - len(values)))[None].to(device)

    with attending(model, _NAME):
        decoded: Any = model.get_decoder()(
            input_ids=given(pack.input_ids),
            position_ids=given(pack.positions),
            use_cache=False,
            gradus_structure=structure,
        )
    if len(structure.layers) != model.config.num_hidden_layers:
        raise UnsupportedAttentionError(f"{len(structure.layers)} of {model.config.num_hidden_layers} layers attend")
    return decoded.last_hidden_state[0].index_select(0, pack.predictors.to(device))


def _by_blocks(pack: Pack, _device: torch.device) -> tuple[Blocks, int]:
    return tree_blocks(pack.spans, pack.positions), pack.num_tokens


def _by_flex(pack: Pack, device: torch.device) -> tuple[Visible, int]:
    ends = padded_ends(seen_until(pack.spans, pack.positions))
    return Visible(ends.to(device)), len(ends)


_STRUCTURES = {"cpu": _by_blocks, "cuda": _by_flex}
"""By kind of device the attention's structure, and the tokens it needs; elsewhere rows are padded."""


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - transformers' signature
    *,
    scaling: float | None = None,
    gradus_structure: Blocks | Visible | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend by a pack's structure, in the form that transformers calls: (1, H, T, D) -> (1, T, H, D).

    Raise UnsupportedAttentionError if the layer asks for a window, a cap or a sink.
    """
    odd = [name for name in ("sliding_window", "softcap", "s_aux", "position_bias") if others.get(name) is not None]
    if odd or gradus_structure is None:
        raise UnsupportedAttentionError(f"the layers attend with {', '.join(odd) or 'arguments of their own'}")
    gradus_structure.layers.add(id(module))
    return gradus_structure.attend(query, key, value, scaling), None


AttentionInterface.register(_NAME, _attend)


def attention_of(model: PreTrainedModel) -> str:
    """Return the name of the attention of a model."""
    return getattr(model.config, "_attn_implementation")  # noqa: B009 - the getter has no public name


@contextmanager
def attending(model: PreTrainedModel, name: str) -> Generator[None]:
    """Attend by that attention for a while."""
    before = attention_of(model)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _padded(model: PreTrainedModel, pack: Pack) -> Tensor:
    prompt, completion = pack.prompts.lengths, pack.completions.lengths
    length = prompt + completion
    at = torch.arange(int(length.max()))
    mask = at[None, :] < length[:, None]
    ids = torch.zeros(mask.shape, dtype=torch.int64)
    ids[at[None, :] < prompt[:, None]] = pack.prompts.values
    ids[mask & (at[None, :] >= prompt[:, None])] = pack.completions.values
    device = model.device
    given = None if bool(mask.all()) else mask.long().to(device)
    hidden: Tensor = model.get_decoder()(
        input_ids=ids.to(device), attention_mask=given, use_cache=False
    ).last_hidden_state
    width = len(at)
    places = spans(torch.arange(len(length)) * width + prompt - 1, completion)
    return hidden.flatten(0, 1).index_select(0, places.to(device))
