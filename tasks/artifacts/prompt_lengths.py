"""Lengths of prompts in tokens, and the problems whose prompts do not fit beside their completions."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Problem
from gradus.models.templates import PromptStyle
from gradus.tasks.artifacts.policies import base_ref

BATCH_ROWS = 1024
_TEMPLATE_TOKENS = 512
"""Tokens that a chat template may add to a question before its exact length is looked at."""
_SPECIAL_TOKENS = 4
_TEMPLATE_FILES = ("chat_template*", "tokenizer_config.json")


def prompt_lengths(policy: Path, problems: Sequence[Problem], style: PromptStyle) -> Iterator[int]:
    """Yield the number of tokens of each problem's prompt without a hint; BadInputError if one has no prompt."""
    from gradus.models.policy import PolicyError, load_prompt_side, prompt_text, prompt_tokens  # noqa: PLC0415 - torch

    try:
        tokenizer = load_prompt_side(policy).tokenizer
        for start in range(0, len(problems), BATCH_ROWS):
            rows = problems[start : start + BATCH_ROWS]
            texts = [prompt_text(tokenizer, row["question"], row["messages"], style=style) for row in rows]
            yield from map(len, prompt_tokens(tokenizer, texts))
    except PolicyError as error:
        raise BadInputError(str(error), hint="give a folder that transformers can load") from None


def refuse_long(store: Store, policy: Ref, problems: Ref, style: PromptStyle, room_tokens: int, setting: str) -> None:
    """Raise BadInputError if prompts have more tokens than there is room for beside the `setting` of completions.

    A token is at least a byte of text, so that no tokenizer is loaded where all questions are short.
    """
    if store.find(problems) is None:
        return
    rows: list[Problem] = store.read(problems, ["problem_id", "question", "messages"]).to_pylist()
    more = _template_tokens(store, policy) + len((style.system + style.template).encode())
    chosen = [row for row in rows if len(_text(row).encode()) + more > room_tokens]
    lengths = list(prompt_lengths(store.path(policy), chosen, style)) if chosen else []
    long = [(length, row["problem_id"]) for length, row in zip(lengths, chosen, strict=True) if length > room_tokens]
    if long:
        length, name = long[0]
        raise BadInputError(
            f"{len(long)} of {len(rows)} problems have prompts that do not fit beside their completions: more than "
            f"{room_tokens} tokens (first {name} with {length})",
            hint=f"ingest.max_prompt_tokens={room_tokens} leaves them out; or lower {setting}",
        )


def _template_tokens(store: Store, policy: Ref) -> int:
    """Tokens that the policy's chat template may add; few if it has none."""
    folders = [store.path(ref) for ref in (policy, base_ref(store, policy)) if ref is not None]
    files = [path for folder in folders for pattern in _TEMPLATE_FILES for path in folder.glob(pattern)]
    named = any(b"chat_template" in path.read_bytes() or path.name.startswith("chat_template") for path in files)
    return _TEMPLATE_TOKENS if named else _SPECIAL_TOKENS


def _text(problem: Problem) -> str:
    return "".join([problem["question"] or "", *(turn["content"] for turn in problem["messages"] or [])])
