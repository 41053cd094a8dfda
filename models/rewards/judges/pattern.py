r"""The reward `format`: whether the completion has the form that was asked for.

With `pattern`: a regular expression searched for in the whole completion, thinking included (`.` also matches line
ends, `^` and `$` match at lines). Without it: an answer is marked by `####` or a non-empty `\boxed{}` after the
thinking. A pattern that backtracks without end costs its row the wall limit of the pool, nothing more.
"""

import re
from typing import Annotated

from gradus.components import REGEX, component
from gradus.models.rewards.base import Row, Verdict
from gradus.models.rewards.text import marked_answer, strip_invisible, visible_text


@component("reward", name="format")
def judge(row: Row, gold: str, max_chars: int, *, pattern: Annotated[str, REGEX] = "") -> Verdict:  # noqa: ARG001 - every reward is called alike
    """1 if the answer is marked, or `pattern` occurs, 0 if not; says nothing about correctness.

    Args:
        row: The completion.
        gold: Not read.
        max_chars: Longer completions are judged by their last characters.
        pattern: Regular expression searched for in the whole completion; empty asks for a marked answer.
    """
    completion = row["completion"]
    if pattern:
        return Verdict(1.0 if re.search(pattern, completion, re.DOTALL | re.MULTILINE) else 0.0)
    text = visible_text(completion, max_chars)
    return Verdict(1.0 if text is not None and marked_answer(strip_invisible(text), words=True) else 0.0)
