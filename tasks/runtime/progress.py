"""Progress of a running stage, as a progress artifact of its Prefect task run.

A call to Prefect's server costs tens of milliseconds, so a stage that ends soon makes none and a long one few.
"""

import time
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

FIRST_S = 5.0
EVERY_S = 5.0


class ProgressArtifact:
    """Call it at every beat of a stage, inside the stage's Prefect task.

    The first artifact is made FIRST_S seconds after the stage began; it is then brought up to date every EVERY_S
    seconds at most, and by `done` at the end.
    """

    def __init__(self, stage: str) -> None:
        self._key = f"{stage}-progress"
        self._next_s = time.monotonic() + FIRST_S
        self._artifact: UUID | None = None

    def __call__(self, frac: float, text: str) -> None:
        """The stage has done this share of its work; the text says so in its own units."""
        if time.monotonic() >= self._next_s:
            self._tell(frac, text)
            self._next_s = time.monotonic() + EVERY_S

    def done(self, text: str) -> None:
        """The stage has ended well: where there is an artifact, it says so."""
        if self._artifact is not None:
            self._tell(1.0, text)

    def _tell(self, frac: float, text: str) -> None:
        percent = 100.0 * min(1.0, max(0.0, frac))
        if self._artifact is None:
            made = create_progress_artifact(percent, key=self._key, description=text)
            assert isinstance(made, UUID)  # a coroutine only in asynchronous flows
            self._artifact = made
        else:
            update_progress_artifact(self._artifact, percent, description=text)
