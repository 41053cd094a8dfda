"""Waves that guide the policy by hints, explanations or examples, and train it as if it had not been guided."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.components.templates import Template, filled
from gradus.data.arrays import Bools, Ints, nulls, positions
from gradus.data.curation.candidates import Candidates
from gradus.data.curation.round import Planned, Round, first_rows, own_rows
from gradus.data.curation.shapes.answers import similarities
from gradus.data.curation.waves.judged import questions
from gradus.data.hints.leaks import leaks
from gradus.data.lake.schema import EXPLAINED

_GUIDE = "{question}\n\nA hint:\n{hint}"
_EXPLAIN = (
    "{question}\n\nThe correct answer is {hint}. Explain step by step why, and end as an answer to the question does."
)


@component("wave", paper="arXiv 2506.13923", needs=("group", "correct", "problem.question", "problem.messages", "hint"))
def guide(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    level: Annotated[int, Ge(1), Le(1000)] = 1,
    template: Annotated[str, Template("question", "hint", needs=("question", "hint"))] = "",
) -> Planned | None:
    """Sample groups whose every rollout failed again with a hint; the new rows join their group (Guide-GRPO).

    Guide-GRPO (arXiv 2506.13923): only where max_i r(o_i) = 0; guided rows are trained as answers to the problem's own
    prompt. Their origin is `guided`, for the loss of that name (update.origin_losses). A group with a rollout that was
    not judged is left alone, and one whose hint is missing or states the answer.

    Args:
        level: Level of the hint.
        template: The prompt with {question} and {hint}; empty for ours.
    """
    rows, correct = round.rows, round.rows["correct"]
    failed = first_rows(rows, rows.by("group").sum(np.where(correct == 0, 0.0, 1.0)) == 0)
    texts, withheld = round.hint(failed, level)
    missing, question = nulls(texts), questions(rows)
    like, hints = failed[~missing], texts.drop_null().to_pylist()
    return round.plan(
        like=like,
        group=rows["group"][like],
        messages=[
            filled(template or _GUIDE, question=question[row], hint=hint) for row, hint in zip(like, hints, strict=True)
        ],
        trained_prompt="problem",
        origin="guided",
        reason="every rollout without a hint is wrong",
        skipped={
            f"no hint of level {level}": int((missing & ~withheld).sum()),
            "the hint states the answer": int(withheld.sum()),
        },
    )


@component("wave", paper="ExPO", needs=("group", "correct", "problem.question", "problem.messages", "hint"))
def explain(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    n: Annotated[int, Ge(1)] = 1,
    level: Annotated[int, Ge(1), Le(1000)] = 1,
    template: Annotated[str, Template("question", "hint", needs=("question", "hint"))] = "",
) -> Planned | None:
    """Have the policy explain the answer of problems whose every rollout failed (ExPO, self-explanations).

    ExPO: c ~ pi(. | q, a*, "explain"), trained as an answer to the question q alone, with a term of its own beside that
    of the rollouts: J = J_GRPO + beta log pi(c, a* | q). The rows are groups of their own, of the origin `explained`,
    so that they enter neither the advantages of others nor the difficulty. The hint may reveal the answer (strategy
    `gold`); a group with a rollout that was not judged is left alone.
    Deviation: an explanation is kept if its answer is right (the term's rows), not by its likelihood beside an
    expert's.

    Args:
        n: Explanations of a problem.
        level: Level of the hint that states the answer.
        template: The prompt with {question} and {hint}; empty for ours.
    """
    rows, correct = round.rows, round.rows["correct"]
    failed = first_rows(rows, rows.by("group").sum(np.where(correct == 0, 0.0, 1.0)) == 0)
    texts, _ = round.hint(failed, level, revealing=True)
    missing, question = nulls(texts), questions(rows)
    like, hints = failed[~missing], texts.drop_null().to_pylist()
    return round.plan(
        like=like,
        messages=[
            filled(template or _EXPLAIN, question=question[row], hint=hint.strip())
            for row, hint in zip(like, hints, strict=True)
        ],
        n=n,
        trained_prompt="problem",
        origin=EXPLAINED,
        reason="every rollout is wrong, and its answer is explained",
        skipped={f"no hint of level {level}": int(missing.sum())},
    )


@component(
    "wave",
    paper="arXiv 2510.26519",
    needs=("group", "origin", "problem.question", "problem.messages", "problem.answer", "problem.solution"),
)
def examples(
    round: Round,
    rng: np.random.Generator,
    *,
    num: Annotated[int, Ge(1), Le(100)] = 2,
    n: Annotated[int, Ge(1)] = 1,
    template: Annotated[
        str, Template("examples", "question", needs=("examples", "question"), may_be_empty=False)
    ] = "{examples}\n\n{question}",
) -> Planned | None:
    """Sample each problem again behind worked examples, which are those of other problems; the rows join its group.

    ICPO (arXiv 2510.26519), implicit expert forcing: o ~ pi_old(. | [D; q]) with D = `num` demonstrations of the
    dataset, drawn anew for each problem, trained as an answer to q alone. The origin of the rows is `exemplified`, for
    the shape `icpo` and a loss (update.origin_losses). A demonstration that states the problem's answer is not shown.

    Args:
        num: Examples of a prompt.
        n: Rollouts of a problem behind examples.
        template: The prompt with {examples} and {question}.
    """
    rows, pool = round.rows, round.candidates
    asked = first_rows(rows, own_rows(rows) & round.is_first)
    own = positions(rows.table.column("problem_id").take(asked), pool.table.column("problem_id"))
    worked = np.array([text is not None for text in pool["problem.solution"]], dtype=np.bool_)
    shown = [_drawn(pool, worked, at, num, rng) for at in own]
    question = questions(rows)
    full = [at for at, texts in enumerate(shown) if texts]
    return round.plan(
        like=asked[full],
        group=rows["group"][asked[full]],
        messages=[filled(template, examples="\n\n".join(shown[at]), question=question[asked[at]]) for at in full],
        n=n,
        trained_prompt="problem",
        origin="exemplified",
        reason="behind worked examples",
        skipped={"no worked example that does not state the answer": len(asked) - len(full)},
    )


@component(
    "wave",
    paper="arXiv 2510.06672",
    needs=("group", "correct", "origin", "completion", "problem.question", "problem.messages", "problem.answer"),
)
def neighbours(
    round: Round,
    rng: np.random.Generator,  # noqa: ARG001 - nothing is drawn
    *,
    num: Annotated[int, Ge(1), Le(100)] = 2,
    template: Annotated[
        str, Template("examples", "question", needs=("examples", "question"), may_be_empty=False)
    ] = "{examples}\n\n{question}",
) -> Planned | None:
    """Sample groups whose every rollout failed again behind the most similar problems that the policy solved (XRPO).

    XRPO (arXiv 2510.06672): problems at zero reward see solved similar problems in context. An example is the first
    right rollout of another problem of the round; the new rows join their group, are trained as answers to the
    problem's own prompt, and have the origin `guided` (see `guide`). An example that states the answer is not shown.
    Deviation: similarity is the cosine of the questions' word counts; where to look is left open by the public review.

    Args:
        num: Examples of a prompt at most.
        template: The prompt with {examples} and {question}.
    """
    rows, correct, question = round.rows, round.rows["correct"], questions(round.rows)
    failed = first_rows(rows, rows.by("group").sum(np.where(correct == 0, 0.0, 1.0)) == 0)
    right = own_rows(rows) & (correct == 1)
    solved = np.flatnonzero(right & (rows.by("group").rank(np.where(right, np.arange(rows.num_rows), np.nan)) == 0))
    alike = similarities([question[row] for row in (*failed, *solved)])[: len(failed), len(failed) :]
    texts = {row: f"{question[row]}\n{rows['completion'][row]}" for row in solved.tolist()}
    shown: list[list[str]] = []
    for row, near in zip(failed.tolist(), alike, strict=True):
        gold = rows["problem.answer"][row] or ""
        order = solved[np.argsort(-near, kind="stable")].tolist()
        safe = [
            each for each in order if question[each] != question[row] and not leaks(texts[each], gold, question[row])
        ]
        shown.append([texts[each] for each in safe[:num]])
    full = [at for at, found in enumerate(shown) if found]
    return round.plan(
        like=failed[full],
        group=rows["group"][failed[full]],
        messages=[filled(template, examples="\n\n".join(shown[at]), question=question[failed[at]]) for at in full],
        trained_prompt="problem",
        origin="guided",
        reason="every rollout is wrong, similar problems are solved",
        skipped={"no solved problem that does not state the answer": len(failed) - len(full)},
    )


def _drawn(pool: Candidates, worked: Bools, own: int, num: int, rng: np.random.Generator) -> list[str]:
    """Return `num` worked solutions with their questions, drawn from those of other problems; fewer if there are."""
    question, answer, solution = (pool[f"problem.{name}"] for name in ("question", "answer", "solution"))
    left: Ints = np.flatnonzero(worked & (np.arange(len(worked)) != own))
    found: list[str] = []
    for at in rng.permutation(left).tolist():
        text = f"{question[at] or ''}\n{solution[at]}"
        if question[at] != question[own] and not leaks(text, answer[own] or "", question[own] or ""):
            found.append(text)
        if len(found) == num:
            break
    return found
