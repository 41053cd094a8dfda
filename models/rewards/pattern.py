r"""The reward `format`: whether the completion has the form that was asked for.

Setting `pattern`: a regular expression searched for in the whole completion, thinking included (`.` also matches line
ends, `^` and `$` match at lines). Without it: an answer is marked by `####` or a non-empty `\boxed{}` after the
thinking. A pattern that backtracks without end costs its row the wall limit of the pool, nothing more.
"""

import re

from gradus.models.rewards.base import RewardSettings, Row, Verdict
from gradus.models.rewards.text import marked_answer, strip_invisible, visible_text


def judge(row: Row, gold: str, settings: RewardSettings) -> Verdict:  # noqa: ARG001 - every reward is called alike
    """1 where the form is there, 0 where it is not; says nothing about correctness."""
    pattern = str(settings.get("pattern", ""))
    completion = row["completion"]
    if pattern:
        return Verdict(1.0 if re.search(pattern, completion, re.DOTALL | re.MULTILINE) else 0.0)
    text = visible_text(completion, int(settings.get("max_chars", 0)))
    return Verdict(1.0 if text is not None and marked_answer(strip_invisible(text), words=True) else 0.0)
