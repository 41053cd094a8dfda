"""Waves that plan texts which are there already: worked solutions, or completions that somebody else wrote."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, MinLen

from gradus.components import component
from gradus.components.templates import Template
from gradus.data.arrays import Bools, Ints, codes, positions
from gradus.data.curation.batch import last_groups
from gradus.data.curation.round import Planned, Round, own_rows
from gradus.data.worked import needs_answer, worked_text


@component(
    "wave",
    needs=(
        "problem.solution",
        "problem.answer",
        "problem.answer_given",
        "group",
        "reward",
        "origin",
        "hint_level",
        "traces",
    ),
)
def given(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    origin: Annotated[str, MinLen(1)] = "expert",
    template: Annotated[str, Template("solution", "answer", needs=("solution",), may_be_empty=False)] = "{solution}",
) -> Planned | None:
    """Add the worked solution of its problem to each group, or the texts of the wave's file (`traces`).

    They join the policy's own group of the problem, of several the one of the highest hint level, the later one of two.
    A group whose problem has none is left alone.

    Args:
        origin: Origin of the rows; update.origin_losses names the loss that they take.
        template: Text made of a solution; {solution} is the solution, {answer} the gold answer. Texts of a file stand
            as they are.
    """
    return _planned(round, _own(round), origin, template)


@component(
    "wave",
    paper="arXiv 2509.04419",
    needs=(
        "problem.solution",
        "problem.answer",
        "problem.answer_given",
        "group",
        "reward",
        "origin",
        "hint_level",
        "correct",
        "traces",
    ),
)
def given_unsolved(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    solved: Annotated[int, Ge(0)] = 0,
    origin: Annotated[str, MinLen(1)] = "expert",
    template: Annotated[str, Template("solution", "answer", needs=("solution",), may_be_empty=False)] = "{solution}",
) -> Planned | None:
    """Add what `given` adds, to groups of which at most `solved` own rows are right (the gate of HPT).

    HPT (arXiv 2509.04419): P <= gate. The group's own rows stay beside the text; the shape `hpt` leaves them out.

    Args:
        solved: Right rollouts of a group at most.
        origin: Origin of the rows; update.origin_losses names the loss that they take.
        template: Text made of a solution; {solution} is the solution, {answer} the gold answer. Texts of a file stand
            as they are.
    """
    own = _own(round)
    right = round.rows.by("group").sum((own & (round.rows["correct"] == 1)).astype(np.float64))
    return _planned(round, own & (right <= solved), origin, template)


def _own(round: Round) -> Bools:
    """Return which rows the policy wrote and a reward judged, (N,); all that it wrote if none was judged."""
    own = own_rows(round.rows)
    judged = ~np.isnan(round.rows["reward"])
    return own & judged if (own & judged).any() else own


def _planned(round: Round, own: Bools, origin: str, template: str) -> Planned | None:
    """Plan the texts of the problems that have a group of these rows (N,)."""
    rows = round.rows
    names = rows.table.column("problem_id")
    target = last_groups(codes(names)[0], rows["group"], np.nan_to_num(rows["hint_level"]).astype(np.int64), own)
    if round.traces is None:
        at, texts, source = *_solutions(round, template), None
    else:
        at, texts = positions(round.traces.column("problem_id"), names), round.traces.column("text").to_pylist()
        source = np.array(round.traces.column("source").to_pylist(), dtype=np.object_)
    kept = np.flatnonzero((at >= 0) & (np.append(target, -1)[at] >= 0))
    like: Ints = at[kept]
    num_problems, num_found = len(np.unique(codes(names)[0])), len(np.unique(codes(names)[0][like]))
    return round.plan(
        like=like,
        group=target[like],
        given=[texts[each] for each in kept],
        origin=origin,
        reason="a worked solution" if source is None else "a text of the file",
        skipped={"no text for the problem, or no group to join": num_problems - num_found},
        source=None if source is None else source[kept],
    )


def _solutions(round: Round, template: str) -> tuple[Ints, list[str]]:
    """Return the first row of each problem that has a worked solution, in the order of the problems, and its text."""
    rows = round.rows
    solution, gold, as_given = (rows[f"problem.{name}"] for name in ("solution", "answer", "answer_given"))
    first = positions(round.candidates.table.column("problem_id"), rows.table.column("problem_id"))
    there = [
        row
        for row in first[first >= 0].tolist()
        if solution[row] is not None and (not needs_answer(template) or gold[row] is not None)
    ]
    texts = [worked_text(template, solution[row], as_given[row] or gold[row]) for row in there]
    return np.array(there, dtype=np.int64), texts
