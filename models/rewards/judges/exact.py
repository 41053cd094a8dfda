r"""The reward `exact`: the answer as a string, after normalisation.

The answer is what stands behind the last `####`, else in the last `\boxed{}`, else behind the last `answer is` or
`answer:`, else the last line that is not empty.
Both sides are normalised alike: Unicode NFKC, case folded, white space collapsed, `\text{}` and `$` unwrapped, outer
quotes and a trailing period removed. 1,200 and 1200 differ: that is what `numeric` is for.
"""

import re
import unicodedata

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.text import last_match, marked_answer, strip_invisible, visible_text

_SAID = re.compile(r"answer\s*(?:is|:)\s*:?([^\n]*)", re.IGNORECASE)
_WRAPPED = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")


@component("reward", name="exact", needs_gold=True)
def judge(row: Row, gold: str, max_chars: int) -> Verdict:
    """1 if the normalised answer of the completion is the normalised gold answer, 0 otherwise."""
    marked_gold = marked_answer(gold, words=True)
    wanted = normalise(gold if marked_gold is None else marked_gold)
    if not wanted:
        return failed(f"the gold answer {gold[:80]!r} is empty after normalisation")
    text = visible_text(row["completion"], max_chars)
    found = None if text is None else stated_answer(strip_invisible(text))
    if found is None or not normalise(found):
        return unparsed(found)
    return judged(correct=normalise(found) == wanted, extracted=found)


def stated_answer(text: str) -> str | None:
    """The answer that a text states; None for an empty text."""
    marked = marked_answer(text, words=True)
    if marked is not None:
        return marked
    said = last_match(_SAID, text)
    if said is not None:
        return said.group(1).strip()
    lines = text.strip().rsplit("\n", 1)
    return lines[-1].strip() or None


def normalise(text: str) -> str:
    r"""The form in which answers are compared.

    >>> normalise(r" \text{New  York}. ")
    'new york'
    """
    text = _WRAPPED.sub(r"\1", strip_invisible(unicodedata.normalize("NFKC", text)))
    text = " ".join(text.replace("$", " ").split()).casefold()
    return text.strip(" \"'`*.").strip()
