"""verl's rollout dump: a JSONL file a step, named by it (`trainer.rollout_data_dir`).

Its writer is `_write_generations` of verl/trainer/ppo/v1/trainer_base.py: input, output, gts, score, step, and a key
for each value that the reward function returns beside the score; `acc` is the customary verdict.
"""

from gradus.data.exchange.row import (
    OURS,
    Exchanged,
    answer_of,
    number_of,
    reward_of,
    text_of,
    verdict_of,
    whole_of,
    with_ours,
)
from gradus.data.records import Row

FIELDS = ("input", "output", "gts", "score", "step", "acc", *OURS)
"""Columns that are read."""
_KNOWN = frozenset({"input", "output", "gts", "score", "step", "acc", "uid", "request_id", *OURS})


def file_name(round_index: int) -> str:
    """Return the name of a step's file."""
    return f"{round_index}.jsonl"


def read(row: Row) -> Exchanged:
    """Return a line of the dump; UnusableRowError without texts."""
    numbers = {key: number_of(value) for key, value in row.items() if key not in _KNOWN}
    found = Exchanged(
        prompt=text_of(row, "input"),
        completion=text_of(row, "output"),
        round=whole_of(row, "step"),
        answer=answer_of(row.get("gts")),
        reward=reward_of(row, "score"),
        correct=verdict_of(row.get("acc")),
        components={key: value for key, value in numbers.items() if value is not None},
    )
    return with_ours(found, row)


def write(row: Exchanged) -> dict[str, object]:
    """Return a line of the dump; a rollout without a reward has no score, as verl has none for it."""
    verdict = {} if row.correct is None else {"acc": float(row.correct)}
    return {
        "input": row.prompt,
        "output": row.completion,
        "gts": row.answer,
        "score": row.reward,
        "step": row.round,
        **verdict,
        **row.components,
        **row.ours(),
    }
