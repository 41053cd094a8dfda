"""ART's trajectories: a Parquet file a step, written by src/art/utils/trajectory_logging.py, versions 1 and 2.

A row is a trajectory; `messages` are its turns, in version 2 null where `trajectory_json` alone holds them. The last
turn is the completion, turns before it are its prompt.
"""

import json
from collections.abc import Mapping

from gradus.data.exchange.row import Exchanged, number_of, reward_of, turns_of, whole_of
from gradus.data.records import Row
from gradus.data.sources.formats import UnusableRowError

FIELDS = ("messages", "trajectory_json", "metrics", "group_index", "reward")
"""Columns that are read."""


def read(row: Row) -> Exchanged:
    """Return a trajectory; UnusableRowError for a group without trajectories, or one that does not end in a text."""
    if row.get("messages") is None and row.get("trajectory_json") is None:
        raise UnusableRowError("a group without trajectories")
    messages = row.get("messages")
    prompt, completion = turns_of(messages if messages is not None else _turns(row.get("trajectory_json")))
    metrics = _object(row.get("metrics"))
    numbers = {str(key): number_of(value) for key, value in metrics.items()}
    return Exchanged(
        prompt=prompt,
        completion=completion,
        group_id=str(whole_of(row, "group_index")),
        reward=reward_of(row, "reward"),
        components={key: value for key, value in numbers.items() if value is not None},
    )


def _turns(text: object) -> list[object]:
    """Return the turns of a trajectory: messages, and choices of an API, whose message is the turn."""
    turns = _object(text).get("messages_and_choices")
    if not isinstance(turns, list):
        raise UnusableRowError("no conversation")
    return [t["message"] if isinstance(t, Mapping) and isinstance(t.get("message"), Mapping) else t for t in turns]


def _object(text: object) -> Mapping[str, object]:
    """Return a JSON object that a column holds as text; empty for anything else."""
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, Mapping) else {}
