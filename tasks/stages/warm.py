"""Objects that stay loaded in a worker from job to job, one typed record a kind.

    @dataclass
    class LoadedPolicies:                  # a stage says what it keeps ...
        by_key: dict[PolicyKey, Policy] = field(default_factory=dict)

    ctx.warm.of(LoadedPolicies).by_key     # ... and finds it again in its next job

Nothing here loads a library: a worker has its record before it has imported a stage.
"""

from typing import TypeVar, cast

Record = TypeVar("Record")


class Warm:
    """The records of one worker, by their class."""

    def __init__(self) -> None:
        self._records: dict[type[object], object] = {}

    def of(self, kind: type[Record]) -> Record:
        """Return the worker's only record of a class; the first call makes it, without arguments."""
        if kind not in self._records:
            self._records[kind] = kind()
        return cast("Record", self._records[kind])
