"""A filter on the writing of the question."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import pyarrow as pa
from annotated_types import Ge, Le

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.arrays import floats, pc
from gradus.data.curation.overlap import texts_of
from gradus.data.curation.results import Selection, selection
from gradus.data.errors import UsageError


@component("filter", needs=("question", "messages"))
def script(
    candidates: Rows, *, scripts: str = "Latin", min_frac: Annotated[float, Ge(0.0), Le(1.0)] = 0.9
) -> Selection:
    """Keep problems whose letters are in some scripts of Unicode, such as Latin, Han or Cyrillic.

    Scripts stand for languages as far as they can: English and French are both Latin, and Japanese is Han, Hiragana
    and Katakana. A question without a letter is kept, and so is none at all; a problem given as messages is its
    messages. Raise UsageError for a name that Unicode does not have.

    Args:
        scripts: Names of scripts with spaces between, as Unicode spells them: Han Hiragana Katakana.
        min_frac: Lowest share of the letters that are in one of them.
    """
    texts = texts_of(pa.table({name: candidates.arrow(name) for name in ("question", "messages")}))
    # Letters alone: digits and signs are of no script, marks are of one and no letters.
    only = pc.replace_substring_regex(texts, pattern=r"\PL+", replacement="")
    theirs = floats(pc.count_substring_regex(only, _of(scripts.split())))
    letters = floats(pc.count_substring_regex(texts, r"\pL"))
    share = np.divide(theirs, letters, out=np.ones(len(letters)), where=letters > 0)
    return selection(candidates.num_rows, [(share < min_frac, f"script: below {min_frac:g} in {scripts}")])


def _of(scripts: Sequence[str]) -> str:
    """Return a pattern of the characters of some scripts; UsageError if Unicode does not know one."""
    if not scripts or not all(map(_is_known, scripts)):
        listed = ", ".join(scripts) or "none"
        raise UsageError(f"script: these are no scripts of Unicode: {listed}", hint="write Latin, Han, Cyrillic ...")
    return "[" + "".join(rf"\p{{{each}}}" for each in scripts) + "]"


def _is_known(script: str) -> bool:
    try:
        pc.count_substring_regex(pa.array([""]), rf"\p{{{script}}}")  # a pattern is looked at only if there is a text
    except pa.ArrowInvalid:
        return False
    return script.replace("_", "").isalpha()
