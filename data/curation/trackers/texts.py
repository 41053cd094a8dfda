"""Trackers of texts that models write for later rounds."""

from typing import Annotated, Any

from annotated_types import Ge

from gradus.components import component
from gradus.data.curation.round import Round
from gradus.data.curation.tracked import Tracked

_OPEN, _CLOSE = "<rubric>", "</rubric>"


@component("tracker", paper="arXiv 2504.20157", by=(), columns=("text", "round"), needs=("rubric: completion",))
def rubric(
    before: Tracked,  # noqa: ARG001 - only the newest is kept
    round: Round,
    *,
    max_chars: Annotated[int, Ge(1)] = 4000,
) -> dict[str, Any]:
    """Keep the rubric that was written last, and its round (MPO).

    MPO (arXiv 2504.20157). It is what rows of the use `rubric` have between their last <rubric> and </rubric>; an
    answer without both, or with nothing between, changes nothing.

    Args:
        max_chars: Longer rubrics are cut, since every prompt of the judge has room for one.
    """
    written = [text for each in round.rows.others("rubric")["completion"] if (text := inside(each or "", max_chars))]
    return {"text": written[-1:], "round": [round.index] * len(written[-1:])}


def inside(answer: str, max_chars: int) -> str:
    """Return the text between the last pair of marks, cut to `max_chars`; empty without a pair.

    >>> inside("No. <rubric> Be right. </rubric> <rubric>", 8), inside("<rubric> never closed", 8)
    ('Be right', '')
    """
    before, closed, _ = answer.rpartition(_CLOSE)
    _, opened, text = before.rpartition(_OPEN)
    return text.strip()[:max_chars] if opened and closed else ""
