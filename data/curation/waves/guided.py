"""Waves that guide the policy only where it fails by itself, and train it as if it had not been guided."""

from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from gradus.components import component
from gradus.data.arrays import nulls
from gradus.data.curation.round import Planned, Round, first_rows
from gradus.data.curation.waves.judged import filled, questions

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
    template: str = "",
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
    template: str = "",
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
        origin="explained",
        reason="every rollout is wrong, and its answer is explained",
        skipped={f"no hint of level {level}": int(missing.sum())},
    )
