"""Shapes that reward rows by what others said of them: won comparisons, the reference of their group."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from gradus.components import component
from gradus.components.rows import Lists
from gradus.data.answers import answer_key
from gradus.data.curation.batch import BatchRows


@component("shape", paper="arXiv 2508.20751", needs=("judge: about", "judge: reward"))
def win_rate(rows: BatchRows) -> Mapping[str, Any]:
    """Reward each row by the share of its judged comparisons that it won (Pref-GRPO).

    Pref-GRPO (arXiv 2508.20751): r_i = sum_j 1[judge prefers i to j] / (G - 1). Rows of the use `judge` are about the
    answer shown first and the one shown second, and their reward is 1 for the first, 0 for the second (the wave
    `pairs`). A comparison without a verdict counts nowhere; a row without any has no reward, and is left out.
    """
    said = rows.others("judge")
    known = ~np.isnan(said["reward"]) & (said["about"] >= 0).all(axis=1)
    (first, second), won = said["about"][known].T, said["reward"][known]
    wins = np.bincount(first, won, rows.num_rows) + np.bincount(second, 1 - won, rows.num_rows)
    games = np.bincount(np.concatenate((first, second)), minlength=rows.num_rows)
    return {"reward": np.divide(wins, games, out=np.full(rows.num_rows, np.nan), where=games > 0)}


@component("shape", paper="arXiv 2505.16265", needs=("group", "judge: about", "judge: reward"))
def preference_strength(rows: BatchRows, *, eps: Annotated[float, Ge(0.0)] = 1e-6) -> Mapping[str, Any]:
    """Make each row's advantage of how strongly it was preferred to the others of its group (Think-RM's policy).

    Think-RM (arXiv 2505.16265), with the advantage `reward`, which takes rewards as they stand:
    A_i = (sum_j d_ij / G) / sqrt(sum_ij d_ij^2 / (2 G (G - 1)) + eps), d_ij = -d_ji from -1 to 1, of G rows. If d_ij
    were r_i - r_j this would be GRPO's advantage. Rows of the use `judge` are as for `win_rate`: d = 2 v - 1 of the
    reward v, the mean of several verdicts about a pair, 0 of a pair without one. A group without any has no reward, and
    is left out.
    Deviation: the authors' binary verdicts are divided by the length of the judge's answer.

    Args:
        eps: Added under the root.
    """
    said, by = rows.others("judge"), rows.by("group")
    known = ~np.isnan(said["reward"]) & (said["about"] >= 0).all(axis=1)
    (first, second), d = said["about"][known].T, 2 * said["reward"][known] - 1
    pairs, of_pair = np.unique(np.sort(said["about"][known], axis=1), axis=0, return_inverse=True)
    of_pair = of_pair.reshape(-1)  # numpy 2.0 has it as a column
    strength = np.bincount(of_pair, np.where(first < second, d, -d)) / np.maximum(np.bincount(of_pair), 1)
    total = np.bincount(pairs[:, 0], strength, rows.num_rows) - np.bincount(pairs[:, 1], strength, rows.num_rows)
    square = by.sum(np.bincount(pairs[:, 0], strength**2, rows.num_rows))  # of pairs: half of the sum over i and j
    judged = by.sum(np.bincount(pairs[:, 0], minlength=rows.num_rows).astype(np.float64)) > 0
    size = by.sum(np.ones(rows.num_rows))
    scale = np.sqrt(square / np.maximum(size * (size - 1), 1) + eps)
    return {"reward": np.divide(total / size, scale, out=np.full(rows.num_rows, np.nan), where=judged & (scale > 0))}


@component("shape", paper="arXiv 2509.14234", needs=("group", "extracted", "reference: about", "reference: extracted"))
def same_as_reference(rows: BatchRows) -> Mapping[str, Any]:
    """Reward each row by r = 1[its answer is that of the reference of its group] (CaT-RL).

    CaT (arXiv 2509.14234), without gold answers: the reference is written from all answers of the group (the wave
    `reconcile`). Equal numbers are one answer. The rows of a group without a reference, or whose reference states no
    answer, have no reward, and are left out.
    """
    references, group = rows.others("reference"), rows["group"]
    about = references["about"]
    each = [about[at] for at in range(references.num_rows)] if isinstance(about, Lists) else list(about)
    of_group = dict[int, str]()
    for members, text in zip(each, references["extracted"], strict=True):
        known = [int(row) for row in members if row >= 0]
        if known and text is not None:
            of_group[int(group[known[0]])] = answer_key(text) or ""
    wanted = [of_group.get(int(number)) for number in group]
    answers = [answer_key(text) for text in rows["extracted"]]
    reward = [np.nan if key is None else float(said == key) for key, said in zip(wanted, answers, strict=True)]
    return {"reward": np.array(reward), "referred_frac": np.array([key is not None for key in wanted])}
