"""Conversations as OpenAI's fine-tuning takes them: a JSONL file, each line `{"messages": [...]}` and nothing else."""

from gradus.data.exchange.row import Exchanged


def file_name(round_index: int) -> str:  # noqa: ARG001 - one file for all rounds
    """Return the name of the file."""
    return "chat.jsonl"


def write(row: Exchanged) -> dict[str, object]:
    """Return a conversation of one question and its completion."""
    turns = [{"role": "user", "content": row.prompt}, {"role": "assistant", "content": row.completion}]
    return {"messages": turns}
