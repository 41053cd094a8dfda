"""Waves that show help to the problems that the policy fails."""

from typing import Annotated

import numpy as np
import pyarrow as pa
from annotated_types import Ge, Le

from gradus.components import component
from gradus.components.templates import Template, filled
from gradus.data.arrays import Ints, bools, nulls, pc
from gradus.data.curation.round import Planned, Round, RoundRows, first_rows
from gradus.data.curation.waves.judged import questions
from gradus.data.hints.leaks import leaks
from gradus.data.hints.points import chosen_points, next_subsets, points_of

Level = Annotated[int, Ge(1), Le(1000)]
_WRITE = (
    "{question}\n\nA solution:\n{solution}\n\n"
    "Write a hint for somebody who has not seen the solution, of level {level} of {levels}: the first level names what "
    "is needed, the last one says how to go about it, step by step. No level states the answer.\n\nHint:"
)
_SHOW = "{question}\n\nA hint:\n{hint}"


@component("wave", paper="arXiv 2507.10628", version=2, needs=("group", "correct", "hint_level", "hint_text", "hint"))
def escalate(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    levels: tuple[Level, ...] = (1, 2, 3),
) -> Planned | None:
    """Sample the groups whose every rollout failed again, with the hint of the next level (GHPO).

    GHPO (arXiv 2507.10628) shows a longer prefix of the solution while a group stays all wrong. One level a call, so
    that `times` is the number of levels; a group that had a hint from the start (`curate.hint_level`) has the level
    after it next. A group with a rollout that was not judged is left alone, and one whose next hint is missing,
    reveals the answer, or was already shown.

    Args:
        levels: Hint levels in their order.
    """
    if round.calls >= len(levels):
        return None
    rows, newest = round.rows, round.newest
    by, correct = rows.by("group"), rows["correct"]
    wrong = newest & (by.sum(np.where(correct == 1, 1.0, 0.0)) == 0)
    unjudged = by.sum(np.isnan(correct).astype(float)) > 0
    undecided, failed = first_rows(rows, wrong & unjudged), first_rows(rows, wrong & ~unjudged)
    following = np.array([_following(levels, int(shown)) for shown in np.nan_to_num(rows["hint_level"][failed])], int)
    failed, following = failed[following > 0], following[following > 0]
    texts, withheld, lacking = np.full(len(failed), None, dtype=object), np.zeros(len(failed), dtype=np.bool_), {}
    for level in sorted({levels[round.calls], *following.tolist()}):
        of_level = following == level
        found, withheld[of_level] = round.hint(failed[of_level], level)
        texts[of_level] = found.to_pylist()
        lacking[f"no hint of level {level}"] = int((nulls(found) & ~withheld[of_level]).sum())
    hints = pa.array(texts, pa.string())
    missing, seen = nulls(hints), bools(pc.equal(hints, rows.arrow("hint_text").take(failed)))
    again = ~missing & ~seen
    shown = rows["hint_level"][failed[again]]
    size = by.sum(np.ones(rows.num_rows))[failed[again]].astype(int)
    return round.plan(
        like=failed[again],
        hint_level=following[again],
        hint_text=hints.filter(pa.array(again)),
        reason=[
            f"all {n} wrong at hint level {int(before)}, shown hint level {level}"
            for n, before, level in zip(size, shown, following[again], strict=True)
        ],
        skipped={
            "not every rollout was judged": len(undecided),
            **lacking,
            "the hint states the answer": int(withheld.sum()),
            "the hint was already shown": int(seen.sum()),
        },
    )


def _following(levels: tuple[int, ...], shown: int) -> int:
    """Return the level behind the one that was shown, 0 if none is left."""
    if shown in levels:
        return next(iter(levels[levels.index(shown) + 1 :]), 0)
    return next((level for level in levels if level > shown), 0) if shown else levels[0]


@component(
    "wave",
    paper="KnowRL",
    needs=(
        "group",
        "problem_id",
        "problem.extra",
        "problem.answer",
        "problem.question",
        "problem.messages",
        "know_rl.kept",
        "probe: problem_id",
        "probe: plan.subset",
        "probe: correct",
    ),
)
def knowledge_subsets(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    n: Annotated[int, Ge(1)] = 8,
    delta: Annotated[float, Ge(0.0), Le(1.0)] = 0.0,
    most: Annotated[int, Ge(1)] = 64,
    template: Annotated[
        str, Template("question", "hint", needs=("question", "hint"), may_be_empty=False)
    ] = "{question}\n\n## Hint\n{hint}",
) -> Planned | None:
    """Try subsets of the knowledge points of problems that the tracker `know_rl` does not know yet (KnowRL).

    KnowRL: acc(S) = mean of n answers behind the points S. The first call tries all points and all but one; the second
    all points less any of those without which the accuracy falls by at most `delta`. The rows are of the use `probe`
    (`[score.probe]` judges them) and nothing is learned from them. A problem with less than two points is left alone.

    Args:
        n: Answers for each subset.
        delta: Accuracy that may be lost, that of the tracker.
        most: Subsets of a problem in one call at most; those that keep more points come first.
        template: The prompt with {question} and {hint}.
    """
    rows = round.rows
    known, question = _accuracies(rows) if round.calls else {}, questions(rows)
    first = first_rows(rows, np.isnan(rows["know_rl.kept"]) & round.is_first)
    like: list[int] = []
    subsets: list[int] = []
    asked: list[str] = []
    for row in first.tolist():
        points = points_of(rows["problem.extra"][row], rows["problem.answer"][row], question[row])
        wanted = next_subsets(known.get(rows["problem_id"][row], {}), len(points), delta, most) if points[1:] else []
        like += [row] * len(wanted)
        subsets += wanted
        asked += [filled(template, question=question[row], hint=chosen_points(points, each)) for each in wanted]
    places = np.array(like, dtype=np.int64)
    return round.plan(
        like=places, use="probe", about=places, messages=asked, subset=subsets, n=n, reason="a subset of its points"
    )


def _accuracies(rows: RoundRows) -> dict[str, dict[int, float]]:
    """Return the accuracy of each subset that was tried, by problem."""
    said = rows.others("probe")
    outcomes: dict[str, dict[int, list[float]]] = {}
    for name, subset, right in zip(said["problem_id"], said["plan.subset"], said["correct"], strict=True):
        if not np.isnan(right):
            outcomes.setdefault(name, {}).setdefault(int(subset), []).append(right)
    return {name: {key: float(np.mean(each)) for key, each in by.items()} for name, by in outcomes.items()}


@component(
    "wave",
    paper="arXiv 2602.03143",
    needs=("problem_id", "correct", "problem.question", "problem.messages", "problem.solution"),
)
def write_hints(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    role: str = "policy",
    levels: tuple[Level, ...] = (1, 2, 3),
    template: Annotated[str, Template("question", "solution", "level", "levels", needs=("solution",))] = "",
) -> Planned | None:
    """Have the policy write hints from the solution of each problem that it fails, for the wave `own_hints` (SAGE).

    SAGE (arXiv 2602.03143): h ~ pi(. | q, solution, level) for prompts of which no rollout is right, written anew by
    the policy as it is. The rows are of the use `written`, about a failed answer, with their `level`.
    Deviation: each level is a text of its own; the authors' code asks for all levels in one.

    Args:
        role: Model that writes: policy, or one of the recipe ([roles.NAME]).
        levels: Levels of hints, a text each; higher ones say more.
        template: Its prompt with {question}, {solution}, {level} and {levels}; empty for ours.
    """
    rows = round.rows
    failed, solution, question = _unsolved(rows), rows["problem.solution"], questions(rows)
    worked = [row for row in failed.tolist() if (solution[row] or "").strip()]
    like = np.repeat(np.array(worked, dtype=np.int64), len(levels))
    level = [*levels] * len(worked)
    asked = [
        filled(
            template or _WRITE,
            question=question[row],
            solution=solution[row],
            level=str(each),
            levels=str(max(levels, default=0)),
        )
        for row, each in zip(like.tolist(), level, strict=True)
    ]
    return round.plan(
        like=like,
        about=like,
        use="written",
        role=role,
        messages=asked,
        level=pa.array(level, pa.int64()),
        n=1,
        reason="every rollout is wrong",
        skipped={"no worked solution": len(failed) - len(worked)},
    )


@component(
    "wave",
    paper="arXiv 2602.03143",
    needs=(
        "problem_id",
        "correct",
        "hint_level",
        "problem.question",
        "problem.messages",
        "problem.answer",
        "written: about",
        "written: completion",
        "written: plan.level",
    ),
)
def own_hints(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    template: Annotated[str, Template("question", "hint", needs=("question", "hint"))] = "",
) -> Planned | None:
    """Sample the problems that the policy still fails again, behind the next hint that it wrote itself (SAGE).

    SAGE (arXiv 2602.03143): o ~ pi(. | q, h_l) with l = 1, 2, ... while every rollout of a problem is wrong, so that
    `times` is the number of levels; trained after the prompt that they were sampled from, on-policy, in place of the
    failed group. A hint that states the answer is not shown, and the next level takes its place.

    Args:
        template: The prompt with {question} and {hint}; empty for ours.
    """
    rows, said = round.rows, round.rows.others("written")
    failed, question, gold = _unsolved(rows), questions(rows), rows["problem.answer"]
    texts: dict[str, dict[int, str]] = {}
    for row, text, level in zip(said["about"][:, 0], said["completion"], said["plan.level"], strict=True):
        if row >= 0 and (text or "").strip():
            texts.setdefault(rows["problem_id"][row], {})[int(level)] = text.strip()
    shown = np.nan_to_num(rows["hint_level"])
    like: list[int] = []
    levels: list[int] = []
    stated = 0
    for row in failed.tolist():
        name = rows["problem_id"][row]
        after = int(shown[rows["problem_id"] == name].max())
        left = sorted(level for level in texts.get(name, {}) if level > after)
        safe = [level for level in left if not leaks(texts[name][level], gold[row] or "", question[row])]
        stated += left != safe and not safe
        like, levels = [*like, *([row] if safe else [])], [*levels, *safe[:1]]
    return round.plan(
        like=np.array(like, dtype=np.int64),
        hint_level=pa.array(levels, pa.int32()),
        messages=[
            filled(template or _SHOW, question=question[row], hint=texts[rows["problem_id"][row]][level])
            for row, level in zip(like, levels, strict=True)
        ],
        reason=[f"every rollout is wrong, shown the policy's own hint of level {level}" for level in levels],
        skipped={"every hint left states the answer": stated},
    )


def _unsolved(rows: RoundRows) -> Ints:
    """Return the first row of each problem of which every row was judged wrong, in order."""
    _, first, problem = np.unique(rows["problem_id"].astype(str), return_index=True, return_inverse=True)
    return np.sort(first[np.bincount(problem, rows["correct"] != 0, len(first)) == 0])
