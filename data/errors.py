"""The errors a person may meet: what happened, which file or row, what to type next."""


class GradusError(Exception):
    """A failure told in one sentence, with the next step where there is one.

    >>> print(GradusError("lake/problems/ab12 has no manifest", hint="run `gradus ingest` again"))
    lake/problems/ab12 has no manifest; run `gradus ingest` again
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = message
        self.hint = hint
        super().__init__(f"{message}; {hint}" if hint else message)


class UsageError(GradusError):
    """The command or the configuration is wrong; nothing was started."""

    exit_code = 2


class BadInputError(GradusError):
    """A file or a row that a person supplied cannot be used."""


class CorruptArtifactError(GradusError):
    """An artefact's bytes are not the ones that its manifest names."""


class GateError(GradusError):
    """A gate between two stages was breached; the message says by which rows."""


class StageError(GradusError):
    """A stage did not finish: it raised, ran out of time, or its process died."""


class LockedError(GradusError):
    """Another living process holds the run."""
