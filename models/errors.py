"""Errors of a policy that cannot be used, and the errors of libraries in a sentence."""

_SHOWN_CHARS = 300


class PolicyError(ValueError):
    """A folder that cannot be loaded as a policy; the sentence says why."""


def first_line(error: BaseException) -> str:
    r"""Return the first line of what an error says, shortened; the name of its type if it says nothing.

    >>> first_line(ValueError("no such key.\nlong details")), first_line(ValueError())
    ('no such key.', 'ValueError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:_SHOWN_CHARS]
