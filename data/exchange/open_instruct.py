"""open-instruct's traces (`--save_traces`): JSONL shards of RolloutRecord (open_instruct/rl_utils.py).

They hold token ids, not texts: a tokenizer makes the texts (gradus.tasks.inspect.exchange).
"""

from gradus.data.exchange.row import MAX_INT, Exchanged, answer_of, number_of, reward_of, whole_of
from gradus.data.records import Row
from gradus.data.sources.formats import UnusableRowError

FIELDS = (
    *("prompt_tokens", "response_tokens", "logprobs", "step", "prompt_idx", "ground_truth", "reward", "finish_reason"),
)
"""Columns that are read."""


def read(row: Row) -> Exchanged:
    """Return a record, its texts empty; UnusableRowError without tokens."""
    completion = _tokens(row, "response_tokens")
    logprobs = row.get("logprobs")
    numbers = [number_of(value) for value in logprobs] if isinstance(logprobs, list) else []
    whole = [value for value in numbers if value is not None]
    return Exchanged(
        prompt="",
        completion="",
        round=whole_of(row, "step"),
        group_id=f"{whole_of(row, 'step')}/{whole_of(row, 'prompt_idx')}",
        answer=answer_of(row.get("ground_truth")),
        reward=reward_of(row, "reward"),
        finish_reason=reason if isinstance(reason := row.get("finish_reason"), str) else None,
        prompt_tokens=_tokens(row, "prompt_tokens"),
        completion_tokens=completion,
        logprobs=whole if len(whole) == len(completion) else None,
    )


def _tokens(row: Row, name: str) -> list[int]:
    values = row.get(name)
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < MAX_INT for value in values):
        raise UnusableRowError(f"no {name}" if values is None else f"{name} is not a list of token ids")
    return values
