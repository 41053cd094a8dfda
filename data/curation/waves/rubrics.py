"""Waves of a judge that goes by a rubric, and of a second model that rewrites it."""

from typing import Annotated

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.data.arrays import Ints
from gradus.data.curation.round import Planned, Round, RoundRows
from gradus.data.curation.waves.judged import filled, questions

_RUBRIC = "A good answer is correct, complete, and shows its steps."
_GRADE = (
    "{question}\n\nAn answer:\n{answer}\n\nA rubric:\n{rubric}\n\n"
    "Grade the answer by the rubric. End with the grade from 0 to 10, as in [[7]]."
)
_REWRITE = (
    "A judge grades answers from 0 to 1 by this rubric:\n{rubric}\n\n{samples}\n\n"
    "Say which grades are wrong or can be had by a trick. Then write a better rubric between <rubric> and </rubric>."
)
_SAMPLE = "Question:\n{question}\nAnswer:\n{answer}\nGrade: {grade}"


@component(
    "wave", paper="arXiv 2504.20157", needs=("completion", "problem.question", "problem.messages", "rubric.text")
)
def grade(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    role: str = "judge",
    template: str = "",
) -> Planned | None:
    """Ask a judge for a grade of each answer by the rubric that the tracker `rubric` keeps (MPO).

    MPO (arXiv 2504.20157): R = judge(question, answer; rubric). The rows are of the use `judge`, about one answer each;
    `[score.judge]` with the reward `verdict` reads the grade. Until a rubric was written it is a sentence of ours.

    Args:
        role: The judge in the recipe ([roles.judge]), or policy.
        template: Its prompt with {question}, {answer} and {rubric}; empty for one that asks for [[0]] to [[10]].
    """
    rows, text, question, rubric = round.rows, round.rows["completion"], questions(round.rows), _rubrics(round.rows)
    there = np.array([row for row in range(rows.num_rows) if text[row] is not None], dtype=np.int64)
    asked = [filled(template or _GRADE, question=question[row], answer=text[row], rubric=rubric[row]) for row in there]
    return round.plan(
        like=there, about=there, use="judge", role=role, messages=asked, n=1, temperature=0.0, reason="to be graded"
    )


@component(
    "wave",
    paper="arXiv 2504.20157",
    needs=("completion", "problem.question", "problem.messages", "rubric.text", "judge: about", "judge: reward"),
)
def rewrite(
    round: Round,
    rng: np.random.Generator,
    *,
    role: str = "meta",
    every: Annotated[int, Ge(1)] = 10,
    samples: Annotated[int, Ge(1)] = 8,
    template: str = "",
) -> Planned | None:
    """Have a second model rewrite the rubric after graded answers, every few rounds (MPO).

    MPO (arXiv 2504.20157): the meta-reward model is shown questions, answers and grades, and closes the loopholes of
    the judge's prompt. The row is of the use `rubric`, about the answers shown; the tracker `rubric` keeps what it
    says. Deviations: analysis, refinement and merging are one answer; answers are drawn at random.

    Args:
        role: The second model in the recipe ([roles.meta]), or policy.
        every: Rounds from one rewriting to the next.
        samples: Graded answers that it is shown at most.
        template: Its prompt with {rubric} and {samples}; empty for ours.
    """
    rows, said = round.rows, round.rows.others("judge")
    about, known = said["about"][:, 0], ~np.isnan(said["reward"])
    graded = np.flatnonzero(known & (about >= 0))
    if round.index % every or not len(graded):
        return None
    drawn = np.sort(rng.permutation(graded)[:samples])
    shown: Ints = about[drawn]
    text, question = rows["completion"], questions(rows)
    listed = "\n\n".join(
        filled(_SAMPLE, question=question[row], answer=text[row], grade=f"{worth:.2f}")
        for row, worth in zip(shown, said["reward"][drawn], strict=True)
    )
    asked = filled(template or _REWRITE, rubric=_rubrics(rows)[shown[0]], samples=listed)
    return round.plan(
        like=shown[:1], about=[shown], use="rubric", role=role, messages=[asked], n=1, reason="the rubric is rewritten"
    )


def _rubrics(rows: RoundRows) -> list[str]:
    """Return the rubric beside each row; ours where none was written."""
    return [text if isinstance(text, str) else _RUBRIC for text in rows["rubric.text"]]
