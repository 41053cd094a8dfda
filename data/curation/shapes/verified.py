"""Shapes of a policy and the verifier that is trained beside it."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.data.curation.batch import BatchRows


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
