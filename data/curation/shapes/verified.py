"""Shapes of a verifier: trained beside the policy, or known to err."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Lt

from gradus.components import component
from gradus.components.rows import Rows
from gradus.data.curation.batch import BatchRows, ShapeError


@component("shape", paper="arXiv 2505.15034", needs=("about", "reward", "policy: correct"))
def agrees(rows: BatchRows) -> Mapping[str, Any]:
    """Reward each verdict of a verifier that says what the outcome says (Tango's verifier).

    Tango (arXiv 2505.15034): r = 1[verdict == correct]. It stands in the verifier's own update
    ([roles.verifier.update]), whose rows are verdicts of 0 or 1 about one answer each. One that was not read is wrong;
    one about an answer that nothing judged has no reward, and is left out.
    Deviation: rewards are not weighed by how many answers are right.
    """
    about, correct = rows["about"][:, 0], rows.others("policy")["correct"]
    truth = np.append(correct, np.nan)[about]  # -1 is the last: not among them
    return {"reward": np.where(np.isnan(truth), np.nan, (rows["reward"] == truth).astype(np.float64))}


@component("shape", paper="arXiv 2505.16265", needs=("about", "reward", "policy: reward"))
def prefers_better(rows: BatchRows) -> Mapping[str, Any]:
    """Reward each verdict about two answers that prefers the one of the higher reward (Think-RM's judge).

    Think-RM (arXiv 2505.16265): r = 1[preferred answer == label]. It stands in the judge's own update
    ([roles.judge.update]), whose rows are verdicts about the answer shown first and the one shown second, above a half
    for the first (the wave `pairs`). A verdict that was not read, or a tie, is wrong; one about answers of equal
    rewards, or without them, has no reward, and is left out.
    Deviation: the label is what the answers were rewarded with, where the paper has preferences of people.
    """
    reward = np.append(rows.others("policy")["reward"], np.nan)  # -1 is the last: not among them
    first, second = (reward[rows["about"][:, at]] for at in (0, 1))
    known = ~np.isnan(first) & ~np.isnan(second) & (first != second)
    right = np.where(first > second, rows["reward"] > 0.5, rows["reward"] < 0.5)
    return {"reward": np.where(known, right.astype(np.float64), np.nan)}


@component("shape", paper="arXiv 2505.15034", needs=("reward", "judge: about", "judge: reward"))
def verified(rows: BatchRows, *, alpha: Annotated[float, Ge(0.0)] = 0.5) -> Mapping[str, Any]:
    """Add the share of verdicts that call an answer right to its reward (Tango's policy).

    Tango (arXiv 2505.15034) adds alpha times the advantage of the verifier's judgement to that of the outcome. An
    answer without a verdict keeps its reward.
    Deviation: rewards are added before the advantage, and the verdict is of the whole answer instead of its steps.

    Args:
        alpha: Weight of the verifier.
    """
    said = rows.others("judge")
    known = ~np.isnan(said["reward"]) & (said["about"][:, 0] >= 0)
    about = said["about"][known, 0]
    right, asked = np.bincount(about, said["reward"][known], rows.num_rows), np.bincount(about, minlength=rows.num_rows)
    return {"reward": rows["reward"] + alpha * right / np.maximum(asked, 1)}


@component("shape", paper="arXiv 2510.00915", needs=("correct",))
def noisy_verdicts(
    rows: Rows,
    *,
    false_right: Annotated[float, Ge(0.0), Lt(1.0)] = 0.1,
    false_wrong: Annotated[float, Ge(0.0), Lt(1.0)] = 0.1,
    correction: Literal["backward", "forward"] = "backward",
) -> Mapping[str, Any]:
    """Reward verdicts of a verifier of known errors so that the gradient is that of true ones, in expectation.

    "Reinforcement Learning with Verifiable yet Noisy Rewards under Imperfect Verifiers" (arXiv 2510.00915). backward:
    R = (r - a) / (1 - a - b) with a = P(right verdict | wrong answer) and b = P(wrong verdict | right answer), whose
    expectation is the true reward. forward: R = b for a right verdict and b - 1 for a wrong one, as the advantage
    `reward` takes it; the expected gradient is that of true rewards, 1 - a - b times. A row without a verdict has no
    reward. Deviation: the errors are given, where the paper also estimates b.

    Args:
        false_right: Share of wrong answers that the verifier calls right.
        false_wrong: Share of right answers that the verifier calls wrong.
        correction: backward or forward.
    """
    informative = 1 - false_right - false_wrong
    if informative <= 0:
        raise ShapeError(f"false_right = {false_right:g} and false_wrong = {false_wrong:g}: no verdict says anything")
    verdict = rows["correct"]
    backward = (verdict - false_right) / informative
    return {"reward": backward if correction == "backward" else verdict + false_wrong - 1}
