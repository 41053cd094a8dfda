"""A filter of problems that share text with evaluated ones."""

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.candidates import CONTAMINATED
from gradus.data.curation.results import Selection, selection
from gradus.data.errors import BadInputError


@component("filter", paper="arXiv 2005.14165", needs=("contaminated",))
def decontaminated(candidates: Rows) -> Selection:
    """Drop problems that share 13 words in a row with an evaluation problem, or are the same as one.

    Decontamination of GPT-3 (arXiv 2005.14165, appendix C), with the words of lm-evaluation-harness: lower case,
    without punctuation, between white space. A run in more than 10 of the problems is a template and no sign. Problems
    are the same without case and spaces; one of fewer than 13 words is found in no other way. In a training the
    problems of all its evaluation suites count, otherwise those of `--evaluated`.
    Deviation: the whole problem is dropped, not a window of 200 characters of it.
    """
    if CONTAMINATED not in candidates:
        raise BadInputError(
            "the filter decontaminated looks for evaluation problems, and none are given",
            hint="give --evaluated FILE, or evaluate.problems in a recipe",
        )
    seen = candidates[CONTAMINATED] > 0
    return selection(candidates.num_rows, [(seen, "decontaminated: shares its text with an evaluation problem")])
