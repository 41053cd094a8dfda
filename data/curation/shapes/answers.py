"""Shapes that reward by the other answers of the group: how many are the same, like it, or of its format."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import scipy.special
from annotated_types import Ge, Le, MinLen

from gradus.components import REGEX, component
from gradus.components.rows import Rows
from gradus.data.answers import answer_key
from gradus.data.arrays import Floats, Ints

_WORD = re.compile(r"\w+")
_BEHIND = "</think>"
_DIGITS = 12
"""Rows that stand alike in their group have equal scores: what rounding adds is cut off."""


@component("shape", paper="arXiv 2504.05812", needs=("group", "extracted"))
def empo(
    rows: Rows, *, low: Annotated[float, Ge(0.0)] = 0.0, high: Annotated[float, Ge(0.0)] = 1.6
) -> Mapping[str, Any]:
    """Reward an answer by the share of its group that has the same, where the group is neither sure nor lost (EMPO).

    EMPO (arXiv 2504.05812): r = |cluster| / G; a group is learned from if low < H < high, the entropy of its clusters.
    Deviations: clusters are equal extracted answers, numbers by their value; a row without one is a cluster of its own
    and has reward 0. The bounds are not the paper's.

    Args:
        low: Groups of this semantic entropy or less are left out, nats.
        high: Groups of this semantic entropy or more are left out, nats.
    """
    reward, entropy = np.zeros(rows.num_rows), np.zeros(rows.num_rows)
    for members in _members(rows):
        answers = [answer_key(rows["extracted"][i]) for i in members]
        counts = Counter(answer for answer in answers if answer is not None)
        alone = [1] * answers.count(None)
        shares = [count / len(members) for count in (*counts.values(), *alone)]
        reward[members] = [counts[answer] / len(members) if answer is not None else 0.0 for answer in answers]
        entropy[members] = -math.fsum(share * math.log(share) for share in shares)
    inside = (entropy > low) & (entropy < high)
    return {
        "reward": reward,
        "taken": inside,
        "reason": [f"the semantic entropy of its group is {each:.2f}" for each in entropy],
        "entropy": entropy,
    }


@component("shape", paper="arXiv 2509.25424", libraries=("scipy",), needs=("group", "reward", "extracted"))
def polychromic(rows: Rows, *, k: Annotated[int, Ge(2)] = 4) -> Mapping[str, Any]:
    """Reward each row by the mean score of the sets of k rows of its group that it belongs to (Polychromic, sets).

    Polychromic Objectives (arXiv 2509.25424): the score of a set is its mean reward times the share of distinct
    behaviours in it. Less the mean over all sets, which is that of the group (the advantage `dr_grpo`), this is a row's
    advantage, so a wrong row with a rare answer may have a positive one. Deviations: all sets of the group, not a
    sample of them; a behaviour is an extracted answer, all rows without one are alike; no rollouts from the middle of
    others (vine sampling). A row without a reward counts nowhere. Groups of at most k rows have one set, and nothing to
    learn.

    Args:
        k: Rows of a set.
    """
    reward = np.full(rows.num_rows, np.nan)
    for members in _members(rows):
        judged = members[~np.isnan(rows["reward"][members])]
        if len(judged):
            answers = [answer_key(text) or "" for text in rows["extracted"][judged]]
            _, behaviour = np.unique(answers, return_inverse=True)
            reward[judged] = set_scores(rows["reward"][judged], behaviour, min(k, len(judged)))
    return {"reward": reward}


def set_scores(reward: Floats, behaviour: Ints, k: int) -> Floats:
    """Return the mean of (mean reward) (distinct behaviours / k) over all sets of k of G rows with each row, (G,).

    Args:
        reward: (G,) rewards.
        behaviour: (G,) the number of each row's behaviour, from 0.
        k: Rows of a set, at most G.
    """
    others, counts = len(reward) - 1, np.bincount(behaviour)
    if k > others:
        return np.full(len(reward), reward.mean() * np.count_nonzero(counts) / k)

    def missed(drawn: int) -> Floats:
        """The chance of each behaviour not to be among `drawn` rows besides k - drawn that are of other ones."""
        left = len(reward) - (k - drawn)
        return np.asarray(scipy.special.comb(left - counts, drawn)) / math.comb(left, drawn)

    one, two = missed(k - 1), missed(k - 2)
    alone = (1 - one).sum() + one[behaviour]
    unlike = behaviour[:, None] != behaviour
    beside = (1 - two).sum() + two[behaviour][:, None] + unlike * two[behaviour]
    np.fill_diagonal(beside, 0.0)
    found = (reward * alone + (k - 1) / others * (beside @ reward)) / k**2
    return np.round(found, _DIGITS)


@component("shape", paper="arXiv 2509.15194", needs=("group", "extracted", "completion"))
def evol_rl(rows: Rows) -> Mapping[str, Any]:
    """Reward the majority's answer, and on each side what is unlike the rest (EVOL-RL).

    EVOL-RL (arXiv 2509.15194): n = 1 - (mean similarity to the row's own side + largest similarity to any row) / 2; u
    is n from 0 to 1 within the side, a half if all are alike; r = 0.5 + 0.5 u of the majority, -1 + 0.5 u of the
    others, -1 without an answer. Of two majorities the first counts. Texts are those behind </think>.
    Deviation: the similarity is the cosine of word counts, not of embeddings.
    """
    reward = np.zeros(rows.num_rows)
    for members in _members(rows):
        answers = [answer_key(rows["extracted"][i]) for i in members]
        texts = [(rows["completion"][i] or "").rpartition(_BEHIND)[2] for i in members]
        reward[members] = majority_and_novelty(answers, similarities(texts))
    return {"reward": reward}


def majority_and_novelty(answers: Sequence[str | None], similarity: Floats) -> Floats:
    """Return the reward of each row of a group, (G,), by the answers and the similarity of every two, (G, G)."""
    said = Counter(answer for answer in answers if answer is not None)
    majority = max(said, key=lambda answer: said[answer], default=None)
    won = np.array([answer is not None and answer == majority for answer in answers])
    others = ~np.eye(len(answers), dtype=np.bool_)
    found = np.zeros(len(answers))
    for side in (won, ~won):
        beside = others & side[None]
        mean = np.divide((similarity * beside).sum(1), beside.sum(1), out=np.zeros(len(answers)), where=beside.any(1))
        novelty = 1 - (mean + np.max(similarity, axis=1, where=others, initial=0.0)) / 2
        low, high = novelty.min(where=side, initial=np.inf), novelty.max(where=side, initial=-np.inf)
        share = (novelty - low) / (high - low) if high > low else np.full(len(answers), 0.5)
        found = np.where(side, (0.5 if side is won else -1.0) + 0.5 * share, found)
    return np.where([answer is None for answer in answers], -1.0, found)


def similarities(texts: Sequence[str]) -> Floats:
    """Return the cosine of the word counts of every two texts, (G, G); 0 for a text without words."""
    counts = [Counter(_WORD.findall(text.lower())) for text in texts]
    words = {word: i for i, word in enumerate(dict.fromkeys(word for each in counts for word in each))}
    matrix = np.zeros((len(texts), max(1, len(words))))
    for row, each in enumerate(counts):
        for word, count in each.items():
            matrix[row, words[word]] = count
    norm = np.linalg.norm(matrix, axis=1, keepdims=True)
    unit = np.divide(matrix, norm, out=np.zeros_like(matrix), where=norm > 0)
    return np.clip(unit @ unit.T, 0.0, 1.0)


def _members(rows: Rows) -> list[Ints]:
    group = np.asarray(rows["group"])
    return [np.flatnonzero(group == number) for number in np.unique(group)]


@component("shape", paper="arXiv 2505.20258", needs=("group", "reward", "completion"))
def ada_grpo(
    rows: Rows,
    *,
    formats: Annotated[tuple[Annotated[str, REGEX], ...], MinLen(1)] = (r"```", r"<think>"),
    progress: Annotated[float, Ge(0.0), Le(1.0)] = 0.0,
) -> Mapping[str, Any]:
    """Raise the rewards of formats that are rare in their group (ARM's Ada-GRPO).

    ARM (arXiv 2505.20258): R = a r with a = (G / F) d, d = F / G + (1 - F / G) (1 + cos(pi t / T)) / 2, where F of the
    group's G completions have the format of the row. So a falls from G / F to 1 during the training, with t / T as
    `progress`: a schedule of the recipe. The format is the first of the expressions that is found in the completion, or
    none of them.

    Args:
        formats: Regular expressions of the formats.
        progress: Share of the training that is over.
    """
    expressions = [re.compile(each, re.DOTALL) for each in formats]
    of = [
        next((at for at, each in enumerate(expressions) if each.search(text or "")), -1) for text in rows["completion"]
    ]
    by, shown = rows.by("group"), np.array(of)
    size = by.count(np.ones(rows.num_rows))
    same = np.zeros(rows.num_rows)
    for each in set(of):
        mine = shown == each
        same = np.where(mine, by.sum(mine.astype(np.float64)), same)
    share = same / size
    decay = share + (1 - share) * (1 + np.cos(np.pi * progress)) / 2
    return {"reward": rows["reward"] * decay / share, "format_share": share}
