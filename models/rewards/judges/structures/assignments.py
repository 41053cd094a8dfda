"""The reward `satisfied`: an assignment that makes every clause true."""

import re
from typing import Any

from gradus.components import component
from gradus.models.rewards.base import Row, Verdict, failed, judged, unparsed
from gradus.models.rewards.judges.exact import stated_answer
from gradus.models.rewards.structured import answer_text, known, stated

_SET = re.compile(r"x?_?(\d{1,6})\s*(?:=|:)\s*(true|false|[01])\b", re.IGNORECASE)
_BITS = re.compile(r"[01](?:[\s,]*[01])*")


@component("reward", name="satisfied", paper="arXiv 2505.16368", columns=("clauses", "extra"), decides=True)
def judge_satisfied(row: Row, gold: str, max_chars: int) -> Verdict:
    """1 if the stated assignment satisfies all clauses, 0 otherwise.

    SATURN (arXiv 2505.16368). `clauses` (a column, or in `extra`), or the answer as JSON, is a list of clauses as in
    DIMACS: 3 is the third variable, -3 its negation. The assignment is a list of such literals, {"x1": true, ...},
    `x1 = 1, x2 = 0`, or a bit for each variable in order. A variable that it leaves out, or has both ways, satisfies
    nothing.

    Args:
        row: The completion.
        gold: The clauses, if the row has none.
        max_chars: Longer completions are judged by their last characters.
    """
    clauses = known(row, gold, "clauses")
    if not _are_clauses(clauses):
        return failed("the row has no clauses: a list of lists of whole numbers other than 0")
    text = answer_text(row, max_chars)
    literals = None if text is None else _literals(stated(row, max_chars), stated_answer(text) or "")
    if literals is None:
        return unparsed()
    sure = {each for each in literals if -each not in literals}
    said = ", ".join(map(str, sorted(sure, key=abs)))
    return judged(correct=all(any(each in sure for each in clause) for clause in clauses), extracted=said)


def _are_clauses(clauses: Any) -> bool:
    return (
        isinstance(clauses, list)
        and bool(clauses)
        and all(isinstance(clause, list) and clause and all(map(_is_literal, clause)) for clause in clauses)
    )


def _is_literal(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value != 0


def _literals(said: Any, text: str) -> set[int] | None:
    if isinstance(said, list) and said and all(map(_is_literal, said)):
        return set(said)
    if isinstance(said, dict):
        text = ", ".join(f"{name}={value}" for name, value in said.items())
    pairs = _SET.findall(text)
    if pairs:
        return {int(number) * (1 if value.lower() in ("1", "true") else -1) for number, value in pairs if int(number)}
    bits = _BITS.fullmatch(text.strip())
    if bits is None:
        return None
    return {place if bit == "1" else -place for place, bit in enumerate(re.findall("[01]", text), start=1)}
