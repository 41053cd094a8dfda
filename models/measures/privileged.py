"""The policy's own completions under a prompt that says more than they were sampled after."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from annotated_types import Ge, Le

from gradus.components import component
from gradus.components.rows import Rows
from gradus.components.templates import Template, filled, places
from gradus.models.measuring import Model

_SHOWN = "{question}\n\nHere is a worked solution:\n{solution}\n\nNow solve the problem in your own words."
_READS = {
    "answer": ("problem.answer",),
    "peer": ("correct", "group", "completion"),
    "hint": ("hint.texts",),
    "feedback": ("marks.feedback",),
    "critique": ("critique: about", "critique: completion"),
}
Texts = Sequence[str | None]


@component(
    "measure",
    paper="arXiv 2601.18734",
    by=("rollout_id",),
    columns=("logp",),
    needs=("completion_tokens", "temperature", "problem.question", "problem.solution"),
)
def privileged(
    rows: Rows,
    model: Model,
    *,
    template: Annotated[
        str,
        Template(
            "question",
            "solution",
            "answer",
            "peer",
            "hint",
            "feedback",
            "critique",
            needs=("question",),
            reads=_READS,
        ),
    ] = _SHOWN,
    level: Annotated[int, Ge(0), Le(1000)] = 0,
) -> Mapping[str, Any]:
    """Return the log-prob (nats) of each token of each completion behind a prompt that says more, as lists.

    The policy that is shown the solution, a hint, a right answer of its own or what was said of its answer is the
    teacher of the one that is not: OPSD (arXiv 2601.18734), SDFT (arXiv 2601.19897), SDPO (arXiv 2601.20802). The
    temperature is that of the row. No list for a row of which something that the template names is missing, or that
    does not fit the model's positions. Hints that state the answer are shown, too: nothing is sampled behind them.

    Args:
        template: The question as it is shown, with {question}; {solution} is the worked solution, {answer} the gold
            answer, {peer} the first other right completion of the row's group, {hint} a hint of the problem, {feedback}
            the labels of the marks `feedback` that rewards gave the row, {critique} what rows of the use `critique`
            say of it. Empty for one with {solution}.
        level: Level of the hint; 0 for the highest that the problem has.
    """
    template = template or _SHOWN
    fields = {name: _texts(rows, name, level) for name in dict.fromkeys(places(template))}
    whole = [row for row in range(rows.num_rows) if all(texts[row] for texts in fields.values())]
    texts = [filled(template, **{name: str(texts[row]) for name, texts in fields.items()}) for row in whole]
    contexts: list[list[int]] = [[]] * rows.num_rows
    for row, tokens in zip(whole, model.prompts(texts), strict=True):
        contexts[row] = tokens
    targets = rows["completion_tokens"]
    found = model.logprobs(contexts, targets, temperature=rows["temperature"]).logp
    lists = [found[row].tolist() if len(found[row]) else None for row in range(rows.num_rows)]
    return {"logp": pa.array(lists, pa.list_(pa.float64()))}  # typed: there may be none at all


def _texts(rows: Any, name: str, level: int) -> Texts:
    """The text of each row in the place of a name, None without one."""
    match name:
        case "peer":
            return _peers(rows)
        case "hint":
            return [_hint(texts or (), level) for texts in rows["hint.texts"]]
        case "feedback":
            marks = rows.marks("feedback")
            return _joined(rows.num_rows, zip(marks.row, marks.label, strict=True))
        case "critique":
            said = rows.others("critique")
            return _joined(rows.num_rows, zip(said["about"][:, 0], said["completion"], strict=True))
        case _:
            return rows[f"problem.{name}"]


def _hint(texts: Texts, level: int) -> str | None:
    """The hint of a level, from 1 on, or the last that is there."""
    if level:
        return texts[level - 1] if level <= len(texts) else None
    return next((text for text in reversed(texts) if text is not None), None)


def _joined(num_rows: int, said: Iterable[tuple[int, str | None]]) -> Texts:
    """The texts that were said of each row, in their order, as paragraphs; -1 is no row."""
    found: list[list[str]] = [[] for _ in range(num_rows)]
    for row, text in said:
        if row >= 0 and text:
            found[row].append(text)
    return ["\n\n".join(texts) or None for texts in found]


def _peers(rows: Rows) -> Texts:
    """Return for each row the first right completion of its group that is not its own, None without one."""
    right: dict[int, list[int]] = {}
    for row in np.flatnonzero(rows["correct"] == 1):
        right.setdefault(int(rows["group"][row]), []).append(int(row))
    others = [[one for one in right.get(int(group), [])[:2] if one != row] for row, group in enumerate(rows["group"])]
    return [rows["completion"][found[0]] if found else None for found in others]
