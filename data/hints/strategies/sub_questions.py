"""The questions that a worked solution answers one after the other, as hints (GSM8K Socratic)."""

import math

from gradus.components import component
from gradus.data.hints import NoHint
from gradus.data.hints.leaks import leaks
from gradus.data.records import Problem

_MARK = " ** "


@component("hint", paper="openai/grade-school-math", shown="Answer these questions one after the other:")
def sub_questions(problem: Problem, fraction: float) -> str | NoHint | None:
    """The first ceil(fraction * steps) sub-questions; from the first one that reveals the answer on they are left out.

    A step of the solution is a line `sub-question ** worked step`. Steps themselves are shown by `prefix`.
    """
    steps = [line.partition(_MARK) for line in (problem["solution"] or "").split("\n")]
    asked = [question.strip() for question, mark, _ in steps if mark and question.strip()]
    if not asked:
        return NoHint("no sub-questions in its solution")
    kept: list[str] = []
    for question in asked[: math.ceil(fraction * len(asked))]:
        if leaks(question, problem["answer"] or "", problem["question"] or ""):
            break
        kept.append(question)
    return "\n".join(kept) + "\n" if kept else None
