"""Samplers: which of the candidate problems are drawn, without replacement, from an explicit generator.

    sampler = Sampler("variance", variance, {"explore_frac": 0.25}, np.random.default_rng(7))
    drawn = sampler.draw(candidates, 64)          # row indices in draw order, their weights, and who was explored
    saved = sampler.state_dict()                  # JSON; load_state refuses any other set of fields

A sampler is `(candidates, num, rng, *, settings) -> Draw`, pure given its generator; `Sampler` adds the state that a
resumed run needs.
A draw asks for at most as many as there are; that fewer were there shows in the length of the result.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa

from gradus.data.curation.samplers.draw import Draw
from gradus.data.errors import BadInputError
from gradus.data.records import JsonObject

__all__ = ["Draw", "Sampler"]


class SamplerState(TypedDict):
    """What the next draw depends on, as JSON values."""

    name: str
    settings: JsonObject
    num_draws: int
    rng: Mapping[str, Any]
    """The state of the generator, whose fields NumPy defines."""


class Sampler:
    """One sampler by name with its settings and its generator: what a run carries from round to round."""

    def __init__(
        self, name: str, function: Callable[..., Draw], settings: JsonObject, rng: np.random.Generator
    ) -> None:
        self.name = name
        self.settings = dict(settings)
        self.num_draws = 0
        self._function = function
        self._rng = rng

    def draw(self, candidates: pa.Table, num: int) -> Draw:
        """Draw `num` candidates, or all where there are fewer."""
        self.num_draws += 1
        return self._function(candidates, num, self._rng, **self.settings)

    def state_dict(self) -> SamplerState:
        """Everything that the next draw depends on."""
        return {
            "name": self.name,
            "settings": dict(self.settings),
            "num_draws": self.num_draws,
            "rng": self._rng.bit_generator.state,
        }

    def load_state(self, state: SamplerState) -> None:
        """Take up a saved state; BadInputError for missing or unexpected fields, or that of another sampler."""
        expected = self.state_dict()
        _same_fields("sampler state", expected, state)
        for name in ("name", "settings"):
            if state[name] != expected[name]:
                raise BadInputError(
                    f"the sampler state has {name} {state[name]!r}, this run has {expected[name]!r}",
                    hint="resume with the settings that the run was started with",
                )
        _same_fields("generator state", expected["rng"], state["rng"])
        if state["rng"]["bit_generator"] != expected["rng"]["bit_generator"]:
            raise BadInputError(f"the sampler state is of a {state['rng']['bit_generator']!r} generator")
        self._rng.bit_generator.state = state["rng"]
        self.num_draws = int(state["num_draws"])


def _same_fields(what: str, expected: Mapping[str, object], given: Mapping[str, object]) -> None:
    missing, unexpected = sorted(set(expected) - set(given)), sorted(set(given) - set(expected))
    if missing or unexpected:
        raise BadInputError(f"the {what} lacks {missing} and has unexpected {unexpected}")
