"""Error messages of libraries, as far as they are in words for people."""

import re

_SHOWN_CHARS = 200
_KIND = re.compile(r"^\(?[A-Za-z_][\w.]*(?:Error|Exception)\)?: *")
_FOREIGN = re.compile(
    r"transformers|torch|safetensor|\bpeft|hugging|deserializ|codec|validat|enforce fail|attribute|argument|operand|"
    r"subscript|iterable|interpreted|unhashable|tensor|index|modulo|division|pattern|character|[Ee]rrno|<|__|line \d|"
    r"\b(?:int|str|float|bool|dict|list|tuple|None|NoneType)\b|\b\w+(?:Error|Exception|Config|Model)\b|^'?[\w.]+'?$",
    re.IGNORECASE,
)
"""Words of libraries and of types, which do not help a user who named a folder."""


def library_reason(error: BaseException) -> str:
    """Return why a library could not do something, behind a colon; empty if it says so in words of its own.

    >>> library_reason(ValueError("no key of that name")), library_reason(TypeError("'int' object is not iterable"))
    (': no key of that name', '')
    """
    line = _KIND.sub("", (str(error).strip().splitlines() or [""])[0])[:_SHOWN_CHARS]
    return f": {line}" if line and not _FOREIGN.search(line) else ""
