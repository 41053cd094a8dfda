"""TRL's table of completions: a Parquet file a step (`log_completions`), written by GRPOTrainer.log.

Columns: step, prompt, completion, one for each reward function, those of `log_extra`, advantage. Which numbers are
rewards is not said: all are taken but those known; the reward is their sum, as with TRL's default weights.
"""

import math

from gradus.data.exchange.row import OURS, Exchanged, number_of, reward_of, text_of, turns_of, whole_of, with_ours
from gradus.data.records import Row
from gradus.data.sources.formats import UnusableRowError

FIELDS = ("step", "prompt", "completion", "reward", *OURS)
"""Columns that are read."""
_KNOWN = frozenset({"step", "prompt", "completion", "advantage", "reward", *OURS})


def file_name(round_index: int) -> str:
    """Return the name of a step's file."""
    return f"completions_{round_index:05d}.parquet"


def read(row: Row) -> Exchanged:
    """Return a row of the table; UnusableRowError without texts."""
    numbers = {key: number_of(value) for key, value in row.items() if key not in _KNOWN}
    rewards = {key: value for key, value in numbers.items() if value is not None}
    total = reward_of(row, "reward")
    completion = row.get("completion")
    found = Exchanged(
        prompt=_prompt(row.get("prompt")),
        completion=turns_of(completion)[1] if isinstance(completion, list) else text_of(row, "completion"),
        round=whole_of(row, "step"),
        reward=total if total is not None else sum(rewards.values()) if rewards else None,
        components=rewards,
    )
    return with_ours(found, row)


def write(row: Exchanged) -> dict[str, object]:
    """Return a row of the table; the column `reward` is the whole reward."""
    return {
        "step": row.round,
        "prompt": row.prompt,
        "completion": row.completion,
        "reward": math.nan if row.reward is None else row.reward,
        "advantage": math.nan,
        **row.ours(),
    }


def _prompt(prompt: object) -> str:
    """Return a prompt that is a text or a list of turns."""
    if isinstance(prompt, list):
        texts = [turn.get("content") for turn in prompt if isinstance(turn, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    if not isinstance(prompt, str):
        raise UnusableRowError("no prompt")
    return prompt
