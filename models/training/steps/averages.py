"""Metrics of an optimiser step, gathered from micro-batches, of one rank or of all."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Averages:
    """Means over the tokens that a metric speaks of, and maxima of metrics whose names end in `_max`.

    >>> found = Averages()
    >>> found.add({"ratio": torch.tensor([1.0, 3.0, 9.0])}, torch.tensor([True, True, False]))
    >>> found.result()
    {'ratio': 2.0}
    """

    _sums: dict[str, float] = field(default_factory=dict[str, float])
    _counts: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, metrics: Mapping[str, Tensor], mask: Tensor) -> None:
        """Add metrics of M tokens, each (M,); those outside the mask (M,) do not count."""
        for name, value in metrics.items():
            counted = value[mask].double()
            if name.endswith("_max"):
                self._raise(name, float(counted.max()) if counted.numel() else 0.0)
            else:
                self._sum(name, float(counted.sum()), counted.numel())

    def to_bytes(self) -> bytes:
        """Return what was gathered, for another rank's `add_bytes`."""
        return json.dumps([self._sums, self._counts]).encode()

    def add_bytes(self, content: bytes) -> None:
        """Add what a rank has gathered."""
        sums, counts = json.loads(content)
        for name, value in sums.items():
            if name.endswith("_max"):
                self._raise(name, value)
            else:
                self._sum(name, value, counts[name])

    def result(self) -> dict[str, float]:
        """Return the metrics; 0 for one of which no token counted."""
        return {name: value / max(1, self._counts.get(name, 1)) for name, value in self._sums.items()}

    def _raise(self, name: str, highest: float) -> None:
        self._sums[name] = max(self._sums.get(name, highest), highest)

    def _sum(self, name: str, total: float, num_counted: int) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + total
        self._counts[name] = self._counts.get(name, 0) + num_counted
