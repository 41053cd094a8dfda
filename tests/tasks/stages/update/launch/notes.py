"""What ranks say, read by tests that do not know the name of their launch."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gradus.tasks.stages.update.launch.mail import Mail, Note


class Notes:
    """The messages of all launches below a folder, each once."""

    def __init__(self, place: Path) -> None:
        self._place, self._mails = place, dict[Path, Mail]()

    def new(self) -> Iterator[Note]:
        """Yield those that came since the last call."""
        for folder in self._place.glob("*"):
            with suppress(FileNotFoundError):  # a launch that begins removes those before
                yield from self._mails.setdefault(folder, Mail(folder)).new()
