"""Progress, speed and remaining time of a run; pure except for the clock passed in.

A round ends with its update. The time left is what rounds took that were computed now, times the rounds that are left;
before one has ended nothing is said of it. Without rounds (a verb alone) the running stage's own share counts.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_TOKENS = re.compile(r"\b(\d+) tokens\b")
_WINDOW_S = 10.0
"""Over which the speed of sampling is measured."""
_ROUNDS = 5
"""How many rounds, the newest, the length of the next is expected from."""
_LEAST_FRAC = 0.05
"""Share of a stage that must be done before its end is foreseen."""


@dataclass(frozen=True)
class Shown:
    """What is to be seen now; None for what is not known."""

    round: int
    frac: float
    left_s: float | None
    tokens_per_s: float | None
    stages: tuple[str, ...]
    """The running stages, each with its share and its own words."""


@dataclass
class _Stage:
    began_s: float
    round: int
    frac: float = 0.0
    text: str = ""
    tokens: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])

    def rate(self) -> float | None:
        """Tokens a second over the window."""
        if len(self.tokens) < 2:
            return None
        (first_s, first), (last_s, last) = self.tokens[0], self.tokens[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else None


class Pace:
    """Takes events and returns what to show. Not thread-safe: the caller holds a lock."""

    def __init__(self, rounds: int, clock: Callable[[], float]) -> None:
        self.rounds = rounds
        self._clock = clock
        self._running: dict[str, _Stage] = {}
        self._done = 0
        self._round_began_s = clock()
        self._lengths_s: deque[float] = deque(maxlen=_ROUNDS)
        self._latest = 0

    def beat(self, label: str, frac: float, text: str) -> None:
        """A stage, called `purpose-stage-round`, is so far."""
        now = self._clock()
        index = label.rpartition("-")[2]
        stage = self._running.setdefault(label, _Stage(now, int(index) if index.isdigit() else 0))
        stage.frac, stage.text = min(1.0, max(0.0, frac)), text
        self._latest = stage.round
        found = _TOKENS.search(text)
        if found:
            stage.tokens.append((now, int(found.group(1))))
            while now - stage.tokens[0][0] > _WINDOW_S:
                stage.tokens.popleft()

    def ended(self, label: str, stage: str, round_: int, *, reused: bool) -> None:
        """A stage ended well."""
        now = self._clock()
        self._running.pop(label, None)
        self._latest = round_
        if stage == "update" and round_ > self._done:
            if not reused:
                self._lengths_s.append(now - self._round_began_s)
            self._done, self._round_began_s = round_, now
        elif not round_:
            self._round_began_s = now  # what comes before the first round is no part of it

    def shown(self) -> Shown:
        """What is to be seen now."""
        rates = [rate for stage in self._running.values() if (rate := stage.rate()) is not None]
        frac, left_s = self._of_rounds() if self.rounds else self._of_stage()
        return Shown(
            round=min((stage.round for stage in self._running.values()), default=self._latest),
            frac=frac,
            left_s=left_s,
            tokens_per_s=sum(rates) if rates else None,
            stages=tuple(f"{label} {stage.frac:.0%} {stage.text}" for label, stage in self._running.items()),
        )

    def _of_rounds(self) -> tuple[float, float | None]:
        left = self.rounds - self._done
        if not self._lengths_s or left <= 0:
            return self._done / self.rounds, None
        length_s = sum(self._lengths_s) / len(self._lengths_s)
        spent_s = self._clock() - self._round_began_s
        within = min(0.99, spent_s / length_s) if length_s else 0.0
        return (self._done + within) / self.rounds, max(0.0, length_s * left - spent_s)

    def _of_stage(self) -> tuple[float, float | None]:
        if not self._running:
            return 0.0, None
        stage = min(self._running.values(), key=lambda running: running.frac)
        if stage.frac < _LEAST_FRAC:
            return stage.frac, None
        return stage.frac, (self._clock() - stage.began_s) * (1 - stage.frac) / stage.frac
