"""Key-value cache for decoding: written, and rows dropped, in place.

transformers' own DynamicLayer concatenates at every token and copies what is left whenever a row leaves; on a small
model that costs more than the attention itself.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

GROWTH_TOKENS = 32
"""Number of tokens by which the cache grows."""


class GrowingLayer(DynamicLayer):
    """Keys and values (B, heads, tokens, dim) of one layer, as the beginning of a larger allocation."""

    _keys_room: Tensor | None = None
    _values_room: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, heads, new, dim) and return all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._keys_room is None or self._values_room is None or end > self._keys_room.shape[-2]:
            self._keys_room = _roomier(self.keys if start else None, key_states, end)
            self._values_room = _roomier(self.values if start else None, value_states, end)
        self._keys_room[:, :, start:end] = key_states
        self._values_room[:, :, start:end] = value_states
        self.keys, self.values = self._keys_room[:, :, :end], self._values_room[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Make row i what row indices[i] was; where rows only leave, no more than the changed ones are copied."""
        if self._keys_room is None or self._values_room is None or self.keys is None or self.values is None:
            return
        rows, end = len(indices), self.keys.shape[-2]
        if rows > len(self.keys):
            self._keys_room = _roomier(self.keys[indices], self.keys, end)
            self._values_room = _roomier(self.values[indices], self.values, end)
        else:
            moved = (indices != torch.arange(rows, device=indices.device)).nonzero()[:, 0]
            for states in (self.keys, self.values):
                states[moved] = states[indices[moved]]
            self._keys_room, self._values_room = self._keys_room[:rows], self._values_room[:rows]
        self.keys, self.values = self._keys_room[:, :, :end], self._values_room[:, :, :end]


def empty_cache(config: PretrainedConfig) -> Cache:
    """Return an in-place cache if all layers use full attention, else transformers' default."""
    own = DynamicCache(config=config)
    if all(type(layer) is DynamicLayer for layer in own.layers):
        return Cache(layer_class_to_replicate=GrowingLayer)
    return own


def _roomier(states: Tensor | None, like: Tensor, tokens: int) -> Tensor:
    """Room for `tokens` and GROWTH_TOKENS more, beginning with the states (B, heads, old, dim) where there are any."""
    rows = len(like) if states is None else len(states)
    room = like.new_empty((rows, like.shape[1], tokens + GROWTH_TOKENS, like.shape[3]))
    if states is not None:
        room[:, :, : states.shape[-2]] = states
    return room
