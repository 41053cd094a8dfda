"""The reward `edit_similarity`: characters that code or a patch shares with the reference, in order."""

import ast
import warnings
from difflib import SequenceMatcher

from gradus.components import component
from gradus.models.rewards.base import MAX_EXTRACTED_CHARS, Row, Verdict, failed
from gradus.models.rewards.structured import answer_text, last_fenced


@component("reward", name="edit_similarity", paper="arXiv 2502.18449")
def judge_edit_similarity(
    row: Row, gold: str, max_chars: int, *, invalid: float = -1.0, python: bool = False, fenced: bool = True
) -> Verdict:
    """Similarity of the answer to the reference, 2 M / T: M characters match of T in both; `invalid` without an answer.

    SWE-RL (arXiv 2502.18449) by difflib.SequenceMatcher on patches, -1 for what cannot be read. With `python` the
    answer must be Python, as in ReCode (arXiv 2506.20495), whose form of the similarity is not published in detail.
    The answer is the last fenced block, or the whole text where none is asked for. Between 0 and 1 it is no verdict.
    Deviation: no word is taken for junk, which makes the ratio independent of the length.

    Args:
        row: The completion.
        gold: The reference.
        max_chars: Longer completions are judged by their last characters.
        invalid: Value of a completion without an answer.
        python: True if the answer must be Python that parses.
        fenced: False if the whole text may be the answer.
    """
    if not gold.strip():
        return failed("the row has no reference")
    text = answer_text(row, max_chars)
    found = None if text is None else last_fenced(text)
    if found is None and text is not None and not fenced:
        found = text
    if found is None or not found.strip() or (python and not _is_python(found)):
        return Verdict(invalid, "wrong")
    ratio = SequenceMatcher(None, found.strip(), gold.strip(), autojunk=False).ratio()
    return Verdict(ratio, extracted=found[:MAX_EXTRACTED_CHARS])


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes, to nobody
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
