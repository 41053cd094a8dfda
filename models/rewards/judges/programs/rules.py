"""The reward `code_rules`: what the code of a program must have, and what it must not have."""

import ast
import io
import re
import tokenize
import unicodedata
import warnings
from typing import Annotated

from gradus.components import REGEX, component
from gradus.models.rewards.base import Row, Verdict
from gradus.models.rewards.structured import answer_text, last_fenced

_LEFT_OUT = ("COMMENT", "NL", "INDENT", "DEDENT", "ENDMARKER")


@component("reward", name="code_rules", paper="arXiv 2507.05687")
def judge_code_rules(
    row: Row,
    gold: str,  # noqa: ARG001 - every reward is called alike
    max_chars: int,
    *,
    needs: tuple[Annotated[str, REGEX], ...] = (),
    forbids: tuple[Annotated[str, REGEX], ...] = (),
) -> Verdict:
    r"""1 if the program is Python whose code has each of `needs` and none of `forbids`, else 0; not if it is right.

    AutoTriton (arXiv 2507.05687): a rule first, is it really what was asked, so that plain PyTorch is not taken for a
    kernel; the shape `gated` multiplies the reward of its execution by it. The program is the last block between
    fences. Patterns are searched for in its code alone, a line a statement: without comments, every string as "", one
    blank between two words and none elsewhere (`@triton\.jit`, `torch\.(matmul|softmax)`). A name that is bound to
    another, or found by getattr, is not followed. A pattern that backtracks without end costs its row the wall limit.

    Args:
        row: The completion.
        gold: Not read.
        max_chars: Longer completions are judged by their last characters.
        needs: Regular expressions that the code must each match somewhere.
        forbids: Regular expressions that it must match nowhere.
    """
    text = answer_text(row, max_chars)
    block = None if text is None else last_fenced(text)
    code = None if block is None else code_alone(block)
    if code is None:
        return Verdict(0.0)
    has = all(re.search(pattern, code, re.MULTILINE) for pattern in needs)
    return Verdict(float(has and not any(re.search(pattern, code, re.MULTILINE) for pattern in forbids)))


def code_alone(source: str) -> str | None:
    r"""Return the code of a Python program, normalised; None if it is none.

    >>> code_alone("x = torch . add(1, 'torch.mul')  # torch.sub")
    'x=torch.add(1,"")\n'
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)  # what is no Python would take the tokenizer a time that grows with its square
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return None
    found: list[str] = []
    depth, after_word = 0, False
    for token in tokens:
        kind = tokenize.tok_name[token.type]
        depth += kind.endswith("STRING_START") - kind.endswith("STRING_END")
        if depth or kind in _LEFT_OUT:
            continue
        is_word = kind in ("NAME", "NUMBER")
        found += [" "] if after_word and is_word else []
        found.append(_written(kind, token.string))
        after_word = is_word
    return "".join(found)


def _written(kind: str, text: str) -> str:
    """Return a token as it stands in normalised code, names as Python reads them."""
    if kind == "NEWLINE":
        return "\n"
    return '""' if kind.endswith(("STRING", "STRING_END")) else unicodedata.normalize("NFKC", text)
