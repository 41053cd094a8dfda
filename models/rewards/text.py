r"""Search for the answer in a completion: after the thinking, behind a marker, in the last box.

All of it is linear in the length of the text, whatever the text is.
Left out: thinking without tags, boxes inside LaTeX comments, answers marked in other ways than `####` and `\boxed`.
"""

import re
from collections import deque

_THINK_OPEN = re.compile(r"<think>", re.IGNORECASE)
_THINK_CLOSE = re.compile(r"</think>", re.IGNORECASE)
_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_MAX_BOXES = 32
"""Boxes that are looked at as one list, so that the time stays linear in the length of the text."""
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE_BOX = re.compile(r"\s*([^\s${}]+)")
_JOINED = re.compile(r"(?:[\s$,;.]|\\(?:q?quad(?![a-zA-Z])|[ ,;()\[\]])|\\text\{\s*(?:and|or)\s*\}|\band\b|\bor\b)*")
_MARKER = re.compile(r"#{4,}((?:[^\n#]|#(?!###))*)")
_HEADING = re.compile(r"[\s*_]*(?:\d+[.)]\s+)?[*_]*[^\W\d_]")
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
)


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last of all matches; None without any."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def visible_text(completion: str, max_chars: int = 0) -> str | None:
    """Return what follows the last `</think>`; None if a `<think>` was never closed, so that there is no answer.

    Longer texts are cut to their last `max_chars` characters (0: not at all), after the thinking was taken off.
    A completion whose `<think>` belongs to the prompt and that was cut off while thinking cannot be
    distinguished from an ordinary one.
    """
    end = 0
    for match in _THINK_CLOSE.finditer(completion):
        end = match.end()
    if _THINK_OPEN.search(completion, end):
        return None
    start = max(end, len(completion) - max_chars) if max_chars else end
    return completion[start:]


def strip_invisible(text: str) -> str:
    """The text without control characters and without what only steers its display."""
    return _INVISIBLE.sub("", text)


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, empty where it is empty or never closed; None without any box.

    >>> last_box(r"first \boxed{3}, no: \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    """
    last = last_match(_BOX, text)
    return None if last is None else _content(text, last.end())[0]


def last_boxes(text: str) -> list[str]:
    r"""The contents of the last boxes with nothing between them but a comma, "and", "or", a semicolon or white space.

    >>> last_boxes(r"\boxed{0}. So $\boxed{1}$, $\boxed{2}$ and $\boxed{3}$.")
    ['1', '2', '3']
    """
    found: list[str] = []
    end = 0
    for box in deque(_BOX.finditer(text), maxlen=_MAX_BOXES):
        if box.start() < end:
            continue  # inside another
        if not _JOINED.fullmatch(text, end, box.start()):
            found = []
        content, end = _content(text, box.end())
        found.append(content)
    return found


def _content(text: str, start: int) -> tuple[str, int]:
    """Return what a box holds that begins at `start`, and its end."""
    bare = _BARE_BOX.match(text, start)
    while start < len(text) and text[start].isspace():
        start += 1
    if start == len(text) or text[start] != "{":
        return (bare.group(1), bare.end()) if bare else ("", start)
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[start + 1 : brace.start()].strip(), brace.end()
    return "", start


def last_marked(text: str, *, words: bool = False) -> str | None:
    r"""The rest of the line after the last `####`, empty where nothing follows; None without a marker.

    A marker followed by words (`#### Step 2`, `#### 1. Add the prices`) is a Markdown heading and does not count;
    with `words` it does where it ends the text (`#### Paris`).

    >>> last_marked("4+3=7\n#### 7\n")
    '7'
    """
    text = text.rstrip()
    marked = [
        m.group(1) for m in _MARKER.finditer(text) if (words and m.end() == len(text)) or not _HEADING.match(m.group(1))
    ]
    return marked[-1].strip() if marked else None


def marked_answer(text: str, *, words: bool = False) -> str | None:
    """Return what follows the last `####`, else the content of the last box; None if there is neither."""
    marked = last_marked(text, words=words)
    return marked if marked is not None else last_box(text)
