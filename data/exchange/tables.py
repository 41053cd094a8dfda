"""Rollouts of other systems as tables of the lake: rollouts, their scores, their problems."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from gradus.data.arrays import looked_up, pc
from gradus.data.errors import BadInputError
from gradus.data.exchange.row import Exchanged
from gradus.data.lake.schema import PROBLEMS, ROLLOUTS, SCORES

_ROLLOUTS = ROLLOUTS.arrow.append(pa.field("question", pa.string())).append(pa.field("answer", pa.string()))
"""Rollouts with question and gold answer beside them, so that they can be scored alone."""


def tables_of(rows: Sequence[Exchanged], system: str, correct_at: float | None = None) -> dict[str, pa.Table]:
    """Return rollouts, problems, and scores of rows that have a reward or a verdict, if there are any.

    Ids that were not given come from prompts, rounds and places in a group. A problem without an id is named by its
    prompt; rollouts of one problem and round are a group. A row without a verdict is correct if its reward is at least
    `correct_at`.
    """
    named = _named(rows, correct_at)
    judged = [row for row in named if row.reward is not None or row.correct is not None]
    rollouts = [{**vars(row), "engine": system, "question": row.prompt} for row in named]
    scores = [_score(row, system) for row in judged]
    return {
        "rollouts": pa.Table.from_pylist(rollouts, schema=_ROLLOUTS),
        "problems": pa.Table.from_pylist(_problems(named, system), schema=PROBLEMS.arrow),
        **({"scores": pa.Table.from_pylist(scores, schema=SCORES.arrow)} if scores else {}),
    }


def sampled_by(rollouts: pa.Table, policy: str, temperature: float) -> pa.Table:
    """Return rollouts as sampled by a policy, so that it can learn from them.

    Raise BadInputError if a row has no token ids or no log-probs. Whether the policy is the one that sampled them is
    for the update to find out, which compares its log-probs with theirs.
    """
    for name in ("prompt_tokens", "completion_tokens", "logprobs"):
        if missing := rollouts.column(name).null_count:
            message = f"{missing} of {rollouts.num_rows} rollouts have no {name}: nothing could learn from them"
            raise BadInputError(message, hint="leave --policy out")
    known = {"policy": pa.array([policy] * len(rollouts)), "temperature": pa.array([temperature] * len(rollouts))}
    for name, values in known.items():
        place = rollouts.schema.get_field_index(name)
        rollouts = rollouts.set_column(place, name, values.cast(rollouts.schema.field(name).type))
    return rollouts


def with_lengths(difficulty: pa.Table, rollouts: pa.Table) -> pa.Table:
    """Return a difficulty table with `mean_tokens` and `mean_characters` of each problem's completions, or null."""
    lengths = {
        "problem_id": rollouts.column("problem_id"),
        "mean_tokens": pc.list_value_length(rollouts.column("completion_tokens")),
        "mean_characters": pc.utf8_length(rollouts.column("completion")),
    }
    _, *names = lengths
    means = pa.table(lengths).group_by("problem_id").aggregate([(name, "mean") for name in names])
    means = means.rename_columns([name.removesuffix("_mean") for name in means.column_names])
    return looked_up(difficulty, "problem_id", means, names)


def _named(rows: Sequence[Exchanged], correct_at: float | None) -> list[Exchanged]:
    """Return rows with all their ids, and their verdicts by reward; a rollout id that occurs twice is made anew."""
    places: Counter[str] = Counter()
    taken: set[str] = set()
    found: list[Exchanged] = []
    for row in rows:
        problem = row.problem_id or hashlib.sha256(row.prompt.encode()).hexdigest()[:16]
        group = row.group_id or f"{problem}@r{row.round}"
        place = places[group]
        places[group] += 1
        name = row.rollout_id
        while not name or name in taken:
            name = f"{group}:{place}" if f"{group}:{place}" not in taken else f"{group}:{place}:{len(taken)}"
        taken.add(name)
        sample, correct = place if row.sample is None else row.sample, row.correct
        if correct is None and correct_at is not None and row.reward is not None:
            correct = row.reward >= correct_at
        ids = {"problem_id": problem, "group_id": group, "rollout_id": name, "sample": sample}
        found.append(replace(row, **ids, correct=correct))
    return found


def _score(row: Exchanged, system: str) -> dict[str, object]:
    outcome = None if row.correct is None else "correct" if row.correct else "wrong"
    return {**vars(row), "components": sorted(row.components.items()), "outcome": outcome, "verifier": system}


def _problems(rows: Sequence[Exchanged], system: str) -> list[dict[str, object]]:
    """Return each problem once, as its rollouts with the least hint were asked."""
    found: dict[str, Exchanged] = {}
    for row in rows:
        known = found.get(row.problem_id)
        if known is None or row.hint_level < known.hint_level:
            found[row.problem_id] = row
    return [
        {"problem_id": name, "question": row.prompt, "answer": row.answer, "domain": system, "source": system}
        for name, row in found.items()
    ]
