"""Trinity-RFT's experiences: one JSONL file, each line Experience.to_dict (trinity/common/experience.py).

eid names batch, task, run, step; experiences of one task and batch are a group. Rows of preference pairs are refused.
"""

from collections.abc import Mapping

from gradus.data.exchange.row import Exchanged, number_of, reward_of, turns_of, whole_of, with_ours
from gradus.data.records import Row
from gradus.data.sources.formats import UnusableRowError

FIELDS = (*("type", "eid", "info", "metrics", "prompt_text", "response_text", "messages", "reward", "truncate_status"),)
"""Columns that are read."""
_CUT = "response_truncated"


def file_name(round_index: int) -> str:  # noqa: ARG001 - one file for all batches
    """Return the name of the file."""
    return "experiences.jsonl"


def read(row: Row) -> Exchanged:
    """Return an experience; UnusableRowError for a preference pair, or without texts."""
    if row.get("type") == "dpo":
        raise UnusableRowError("a preference pair, not a rollout")
    eid, info, metrics = (_mapping(row.get(key)) for key in ("eid", "info", "metrics"))
    prompt, completion = row.get("prompt_text"), row.get("response_text")
    if not (isinstance(prompt, str) and isinstance(completion, str)):
        prompt, completion = turns_of(row.get("messages"))
    numbers = {key: number_of(value) for key, value in metrics.items()}
    found = Exchanged(
        prompt=prompt,
        completion=completion,
        round=whole_of(eid, "batch"),
        reward=reward_of(row, "reward"),
        components={key: value for key, value in numbers.items() if value is not None},
        group_id=f"{eid['batch']}/{eid['task']}" if "batch" in eid and "task" in eid else "",
        finish_reason="length" if row.get("truncate_status") == _CUT else None,
    )
    return with_ours(found, info)


def write(row: Exchanged) -> dict[str, object]:
    """Return an experience of one turn; lengths in tokens are those of the rollout, 0 if it has none."""
    cut = {"truncate_status": _CUT} if row.finish_reason == "length" else {}
    scored = {} if row.reward is None else {"reward": row.reward}
    return {
        "eid": {"batch": row.round, "task": row.group_id, "run": row.sample or 0, "step": 0, "suffix": row.rollout_id},
        "type": "single_turn",
        "prompt_length": len(row.prompt_tokens or ()),
        "response_length": len(row.completion_tokens or ()),
        "info": row.ours(),
        "metrics": dict(row.components),
        "prompt_text": row.prompt,
        "response_text": row.completion,
        **scored,
        **cut,
    }


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
