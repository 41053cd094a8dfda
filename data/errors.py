"""Errors for users: what happened, which file or row, what to type next."""

import errno
import re
from collections.abc import Callable
from typing import TypeAlias

from gradus.data.unicode import whole


class GradusError(Exception):
    """A failure in one sentence, with the next step if there is one.

    >>> print(GradusError("lake/problems/ab12 has no manifest", hint="run `gradus ingest` again"))
    lake/problems/ab12 has no manifest; run `gradus ingest` again
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        self.message = whole(message)
        self.hint = whole(hint)
        super().__init__(sentence(self.message, self.hint))


class UsageError(GradusError):
    """The command or the configuration is wrong; nothing was started."""

    exit_code = 2


class BadInputError(GradusError):
    """A file or a row of the user's cannot be used."""


class CorruptArtifactError(GradusError):
    """An artifact's bytes are not the ones that its manifest names."""


OnDamage: TypeAlias = Callable[[CorruptArtifactError], None]
"""Reaction of a reader to damage: raise it (`refuse`), or note it and continue with the undamaged rows."""


def refuse(damage: CorruptArtifactError) -> None:
    """Raise the damage."""
    raise damage


class PrunedError(GradusError):
    """A file of an artifact was removed to make room."""


class GateError(GradusError):
    """A gate between two stages was breached; the message says by which rows."""


class StageError(GradusError):
    """A stage did not finish: it raised, ran out of time, or its process died."""


class LockedError(GradusError):
    """Another living process holds the run."""


def error_class(name: str) -> type[GradusError] | None:
    """Return the class of one of these errors by its name, as another process wrote it; None for another name."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, GradusError) else None


MAX_SENTENCE_CHARS = 480
"""A sentence has at most 500 characters with what a program puts before it."""
_MAX_HINT_CHARS = 200
_SHOWN_CHARS = 120
_KIND = re.compile(r"\(?\b[A-Za-z_][\w.]*(?:Error|Exception|Warning)\b\)?:? *")
_NUMBERED = re.compile(r" ?(?:\[errno (\d+)\]|\(os error (\d+)\))", re.IGNORECASE)
"""The number of an error of the operating system as Python, Arrow and Rust write it."""
_SPACE = "free some space, or set GRADUS_HOME to a folder on another disk; then repeat the command"
_WRITABLE = "change its permissions, or set GRADUS_HOME to a folder that you can write"
_LIMIT = "close other programs or raise the limit; then repeat the command"
_SYSTEM = {
    errno.EACCES: ("there is no permission for {}", _WRITABLE),
    errno.EPERM: ("there is no permission for {}", _WRITABLE),
    errno.EROFS: ("{} is on a disk that can only be read", "set GRADUS_HOME to a folder that you can write"),
    errno.ENOSPC: ("the disk is full: {} cannot be written", _SPACE),
    errno.EDQUOT: ("the quota of disk space is used up: {} cannot be written", _SPACE),
    errno.EFBIG: ("{} would be larger than this process may write", "raise the limit (`ulimit -f`)"),
    errno.ENOENT: ("there is no {}", "check the name; if it existed a moment ago, repeat the command"),
    errno.ENOTDIR: ("there can be no {}: a part of its path is a file", "give another path"),
    errno.EISDIR: ("{} is a folder, not a file", "give a file"),
    errno.EEXIST: ("{} is there already", "move it away, or give another path"),
    errno.ENAMETOOLONG: ("no file can have so long a name: {}", "give a shorter one"),
    errno.ELOOP: ("{} is a link that leads to itself", "remove the link, or give another path"),
    errno.EMFILE: ("too many files are open: {}", _LIMIT),
    errno.ENFILE: ("too many files are open: {}", _LIMIT),
    errno.ENOMEM: ("there is not enough memory: {}", _LIMIT),
    errno.EAGAIN: ("no process or thread can be started: {}", _LIMIT),
    errno.EINVAL: (
        "the system refuses what is asked of {}",
        "give an ordinary file or folder, on another disk if need be",
    ),
    errno.EIO: ("the disk failed to read or write {}", "check the disk; then repeat the command"),
    errno.EPIPE: ("the other end of {} is closed", "repeat the command"),
}
"""Messages and remedies for the operating system's errors, by number."""
_WRONG_USE = frozenset({errno.ENAMETOOLONG, errno.EISDIR})


def in_words(error: BaseException, place: str = "a file") -> GradusError:
    """Return an error as one for people: the file and what to do if it is the operating system's, no name of a type.

    `place` is used if the system names no file. A group of errors has the words of its first; an error without words
    has those of its cause, or the name of its type.

    >>> print(in_words(PermissionError(13, "Permission denied", "/data/x")).message)
    there is no permission for /data/x
    >>> print(in_words(KeyError("n")))
    'n'
    """
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, GradusError):
        return error
    if isinstance(error, MemoryError):
        return GradusError("there is not enough memory", hint="use less at once, or a machine with more")
    lines = _NUMBERED.sub("", _KIND.sub("", str(error))).strip().splitlines()
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if not lines and cause is not None:
        return in_words(cause, place)
    text = lines[0][:300] if lines else f"something failed without saying why ({type(error).__name__})"
    if isinstance(error, OSError):
        found = _NUMBERED.search(str(error))
        number = error.errno or (int(found[1] or found[2]) if found else 0)
        names = [shortened(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
        if number in _SYSTEM:
            what, hint = _SYSTEM[number]
            kind = UsageError if number in _WRONG_USE else GradusError
            return kind(what.format(" or ".join(names) or place), hint=hint)
        if error.strerror and names:
            text = f"{error.strerror}: {' or '.join(names)}"
    return GradusError(text)


def sentence(message: str, hint: str = "") -> str:
    """Return a message with its hint, shortened if they are long: the hint stays, a name or a value loses its middle.

    >>> sentence("there is no run x", "list them with `gradus runs`")
    'there is no run x; list them with `gradus runs`'
    >>> len(sentence("there is no run " + "x" * 9000, "list them"))
    480
    """
    most = max(_MAX_HINT_CHARS, MAX_SENTENCE_CHARS - len(message) - 2)
    end = f"; {shortened(hint, most)}" if hint else ""
    return shortened(message, MAX_SENTENCE_CHARS - len(end)) + end


def shortened(name: str | bytes, max_chars: int = _SHOWN_CHARS) -> str:
    """Return a name as a sentence shows it: the middle of one of more than `max_chars` characters is left out."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    if len(text) <= max_chars:
        return text
    note = f" ({len(text)} characters)"
    left = max(0, max_chars - len(note) - 1)
    return f"{text[: left - left // 2]}…{text[len(text) - left // 2 :]}{note}"
