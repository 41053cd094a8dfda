"""Shapes of the parts of answers: sentences, items, wrong steps are marked; chunks, turns, sub-answers rewarded."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Lt

from gradus.components import REGEX, component
from gradus.components.rows import Rows, tokens_of
from gradus.data.curation.batch import BatchRows, ShapeError
from gradus.data.curation.round import own_rows


@component(
    "shape",
    paper="arXiv 2508.02298",
    needs=(
        "critique: about",
        "critique: reward",
        "critique: marks.wrong",
        "critique: plan.starts",
        "critique: plan.ends",
    ),
)
def wrong_steps(rows: BatchRows, *, share: Annotated[float, Ge(0.0), Lt(1.0)] = 0.5) -> Mapping[str, Any]:
    """Mark the steps of each answer that more than a share of its critiques call wrong (CAPO).

    CAPO (arXiv 2508.02298) votes over several critiques. A critique counts if it could be read (the wave
    `step_critiques`, the reward `faults`), once for each step. The marks `wrong` have the share of votes as their
    value, which the advantage `capo` reads.

    Args:
        share: Share of an answer's critiques above which a step is wrong.
    """
    said, about = rows.others("critique"), rows.others("critique")["about"][:, 0]
    read = ~np.isnan(said["reward"]) & (about >= 0)
    critiques = np.bincount(about[read], minlength=rows.num_rows)
    named = said.marks("wrong")
    counted = read[named.row] & np.isfinite(named.value)
    votes = {*zip(named.row[counted].tolist(), named.value[counted].astype(np.int64).tolist(), strict=True)}
    starts, ends = said["plan.starts"], said["plan.ends"]
    of_step = Counter((int(about[critique]), step) for critique, step in votes)
    places = {int(about[critique]): critique for critique in np.flatnonzero(read)}
    marks: list[list[dict[str, Any]]] = [[] for _ in range(rows.num_rows)]
    for (row, step), count in sorted(of_step.items()):
        first, behind = starts[places[row]], ends[places[row]]
        if 1 <= step <= len(first) and count > share * critiques[row]:
            value, start, end = count / critiques[row], int(first[step - 1]), int(behind[step - 1])
            marks[row].append({"name": "wrong", "start": start, "end": end, "value": value})
    return {"marks": marks, "steps": np.array([len(each) for each in marks], dtype=np.float64)}


@component("shape", paper="arXiv 2508.19229", needs=("reward", "plan.value", "plan.before"))
def right_about_chunks(
    rows: BatchRows,
    *,
    label: Literal["absolute", "relative"] = "relative",
    ratio: Annotated[float, Gt(0.0)] = 0.8,
    eps: Annotated[float, Gt(0.0)] = 1e-3,
) -> Mapping[str, Any]:
    """Reward each verdict of a judge that says of a chunk what its continuations say (StepWiser).

    StepWiser (arXiv 2508.19229): r = 1[verdict == label]. A chunk is good if Q_i > 0 (absolute), or if
    Q_i / (Q_{i-1} + eps) > ratio (relative), where Q are values that the wave `judge_chunks` planned with. It stands in
    the judge's own update ([roles.judge.update]), whose rows are verdicts of 0 or 1. One that was not read is wrong.

    Args:
        label: Kind of the label.
        ratio: Share of the value before a chunk that a good one keeps.
        eps: Added to that value.
    """
    value, before = rows["plan.value"], rows["plan.before"]
    good = value > 0 if label == "absolute" else value / (before + eps) > ratio
    right = (rows["reward"] == good).astype(np.float64)
    return {"reward": np.where(np.isnan(value), np.nan, right), "good_chunks": good.astype(np.float64)}


@component("shape", paper="arXiv 2511.04256", needs=("completion", "token_starts", "token_ends"))
def sentences(rows: BatchRows, *, end: Annotated[str, REGEX] = r"[.!?;:](?=\s)|\n+") -> Mapping[str, Any]:
    """Mark every sentence of each completion as `sentence`, for losses of sentences (SSPO).

    SSPO (arXiv 2511.04256). A sentence runs to the end of the next match; a token that belongs to two belongs to the
    first. Completions of text alone have none.

    Args:
        end: Regular expression of the ends of sentences.
    """
    found = re.compile(end)
    marks: list[list[dict[str, Any]]] = []
    for text, starts, ends in zip(rows["completion"], rows["token_starts"], rows["token_ends"], strict=True):
        places = sorted({match.end() for match in found.finditer(text or "")}) if len(starts) else []
        behind = [*(tokens_of(starts, ends, 0, place)[1] for place in places), len(starts)]
        edges = sorted({0, *behind})
        marks.append([{"name": "sentence", "start": a, "end": b} for a, b in pairwise(edges)])
    return {"marks": marks, "sentences": np.array([len(each) for each in marks], dtype=np.float64)}


@component("shape", paper="arXiv 2510.20150", needs=("completion", "token_starts", "token_ends", "problem.answer"))
def items(rows: BatchRows, *, item: Annotated[str, REGEX] = r"\W*?(?:\d+[.)]\s+)?([-+]?\w.*?)\W*") -> Mapping[str, Any]:
    """Mark every line of a completion as `item`, with the value 1 if the gold answer has it, for credit by item.

    Rank-GRPO (arXiv 2510.20150). The gold answer is a list, too, an item a line; each of its items counts once, where
    it comes first. Items are equal but for case. Blank lines have none, and completions of text alone.

    Args:
        item: Regular expression of a line, whose first group is the item; what does not fit it whole has the value 0.
            The usual one passes over a number, a bullet and punctuation around it.
    """
    found, marks, values = re.compile(item), list[list[dict[str, Any]]](), list[float]()
    columns = (rows[name] for name in ("completion", "problem.answer", "token_starts", "token_ends"))
    for text, gold, starts, ends in zip(*columns, strict=True):
        wanted, behind = Counter(_item(found, line) for line in (gold or "").splitlines()), 0
        wanted[""] = 0
        own = list[dict[str, Any]]()
        for line in re.finditer(r"[^\n]+", text or "") if len(starts) else ():
            first, end = tokens_of(starts, ends, *line.span())
            said, first = _item(found, line[0]), max(first, behind)
            if line[0].strip() and first < end:
                own.append({"name": "item", "start": first, "end": end, "value": float(wanted[said] > 0)})
                wanted[said] -= 1
                behind = end
        marks.append(own)
        values.append(sum(each["value"] for each in own))
    return {"marks": marks, "items": np.array([len(each) for each in marks], dtype=np.float64), "hits": values}


@component("shape", paper="arXiv 2505.19788", needs=("completion", "correct", "reward"))
def few_turns(
    rows: Rows, *, turn: Annotated[str, REGEX] = "</think>", scale: Annotated[float, Ge(0.0)] = 0.5
) -> Mapping[str, Any]:
    """Add the more to a right completion the fewer turns it has: R = r + 1[right] scale / turns (MinD).

    MinD (arXiv 2505.19788), r_compact beside format and accuracy. The form is guessed. Turns are the matches of an
    expression, at least one.

    Args:
        turn: Regular expression that occurs once in a turn.
        scale: Added to a right completion of one turn.
    """
    found = re.compile(turn)
    turns = np.array([max(1, sum(1 for _ in found.finditer(text or ""))) for text in rows["completion"]], np.float64)
    return {"reward": rows["reward"] + np.where(rows["correct"] == 1, scale / turns, 0.0), "turns": turns}


@component(
    "shape",
    paper="arXiv 2505.19640",
    needs=("completion", "correct", "origin", "reward", "problem.sub_answers", "accuracy.share"),
)
def interleaved(
    rows: Rows,
    *,
    answer: Annotated[str, REGEX] = r"<answer>((?:(?!<answer>).)*?)</answer>",
    form: Annotated[str, REGEX] = (
        r"\s*+(?:<think>(?:(?!</?think>).)*+</think>\s*+<answer>(?:(?!</?answer>).)*+</answer>\s*+)++"
    ),
    credit: Literal["all", "mean", "discounted"] = "discounted",
    scale: Annotated[float, Ge(0.0)] = 0.5,
    eps: Annotated[float, Ge(0.0)] = 0.05,
) -> Mapping[str, Any]:
    """Reward right answers on the way only if the end is right, the form holds, and accuracy is not falling.

    "Interleaved Reasoning for Large Language Models via Reinforcement Learning" (arXiv 2505.19640): R = r + scale s if
    the row is right, its form valid, and Acc > Acc_before - eps, else r; Acc is the share of right rows of the policy's
    own, Acc_before that of the last complete round (the tracker `accuracy`), and in the first round nothing is falling.
    s is by `credit`: 1 if every sub-answer is right, else 0 (all); the share that is right in its place (mean); 1 if
    all occur, else the mean of 1 / k, with k the first place of a sub-answer, 0 for none (discounted). Gold ones are
    the key `sub_answers` of a problem's `extra`, a list of texts; the last answer of a completion is the final one.

    Args:
        answer: Regular expression of an answer, whose first group is compared, without regard to case.
        form: Regular expression that the whole completion must match; the usual one takes a time linear in its length.
        credit: Kind of s.
        scale: Its weight in the sum.
        eps: Fall of the accuracy that is passed over.
    """
    own, right = own_rows(rows), rows["correct"] == 1
    before, judged = rows["accuracy.share"], own & ~np.isnan(rows["correct"])
    now = right[judged].mean() if judged.any() else 0.0
    rising = np.isnan(before) | (now > before - eps)
    said, valid = re.compile(answer, re.DOTALL), re.compile(form, re.DOTALL)
    value = np.zeros(rows.num_rows)
    for row in np.flatnonzero(right & rising):
        text = rows["completion"][row] or ""
        if valid.fullmatch(text):
            found = [_plain(each[1] if said.groups else each[0]) for each in said.finditer(text)][:-1]
            value[row] = _of_sub_answers(found, rows["problem.sub_answers"][row] or (), credit)
    return {"reward": rows["reward"] + scale * value, "credited_frac": value > 0, "rising": rising}


def _of_sub_answers(found: Sequence[str], gold: Any, credit: str) -> float:
    """The credit of the answers before the last one, 0 to 1; 0 without gold ones; ShapeError unless they are a list."""
    if not isinstance(gold, list | tuple):
        raise ShapeError(f"a problem's sub_answers are {gold!r}: a list of texts")
    wanted = [_plain(str(each)) for each in gold]
    if not wanted:
        return 0.0
    if credit == "discounted":
        places = [found.index(each) + 1 if each in found else 0 for each in wanted]
        return 1.0 if all(places) else sum(1 / each for each in places if each) / len(wanted)
    hits = sum(one == other for one, other in zip(found, wanted, strict=False))
    return hits / len(wanted) if credit == "mean" else float(hits == len(wanted))


def _plain(text: str) -> str:
    return text.strip().casefold()


def _item(pattern: re.Pattern[str], line: str) -> str:
    """The item of a line in lower case; "" for a line that is none."""
    found = pattern.fullmatch(line.strip())
    return "" if found is None else (found[1] if found.re.groups else found[0]).casefold()
