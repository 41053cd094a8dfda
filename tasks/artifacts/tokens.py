"""Tokens of texts by the tokenizer of a policy: lengths of prompts, and the characters that each token holds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Ints, nulls
from gradus.data.errors import BadInputError
from gradus.data.lake.manifest import CURE
from gradus.data.lake.schema import PLACES, ROLLOUTS
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Problem
from gradus.models.templates import PromptStyle
from gradus.tasks.artifacts.policies import base_ref

BATCH_ROWS = 1024
_TEMPLATE_TOKENS = 512
"""Tokens that a chat template may add to a question before its exact length is looked at."""
_SPECIAL_TOKENS = 4
_TEMPLATE_FILES = ("chat_template*", "tokenizer_config.json")

TOKENS, TEXT = "completion_tokens", "completion"


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


def bounds_of(store: Store, ref: Ref, rows: pa.Table) -> list[tuple[Ints, Ints] | None]:
    """Return the first character of each token, and the one behind its last, of some rows of an artifact of rollouts.

    None for a row of text alone, or without a text. The policy that sampled is the one that the artifact's manifest
    names; BadInputError if it names none.
    """
    texts, tokens = rows.column(TEXT), ROLLOUTS.column(rows, TOKENS)
    there = np.flatnonzero(~(nulls(texts) | nulls(tokens)))
    found: list[tuple[Ints, Ints] | None] = [None] * rows.num_rows
    if not len(there):
        return found
    from gradus.models.policy import PolicyError, load_tokenizer  # noqa: PLC0415 - torch
    from gradus.models.token_bounds import token_bounds  # noqa: PLC0415 - torch

    try:
        tokenizer = load_tokenizer(store.path(_sampler(store, ref)))
    except PolicyError as error:
        raise BadInputError(str(error), hint=CURE) from None
    for row in there.tolist():
        found[row] = token_bounds(tokenizer, tokens[row].as_py(), texts[row].as_py())
    return found


def with_places(store: Store, refs: Sequence[Ref], parts: Sequence[pa.Table]) -> list[pa.Table]:
    """Return rollouts of some artifacts with the columns `token_starts` and `token_ends`, null for text alone."""
    found: list[pa.Table] = []
    for ref, part in zip(refs, parts, strict=True):
        bounds, placed = bounds_of(store, ref, part), part
        for side, name in enumerate(PLACES):
            values = [None if each is None else each[side] for each in bounds]
            placed = placed.append_column(name, pa.array(values, pa.list_(pa.int64())))
        found.append(placed)
    return found


def _sampler(store: Store, ref: Ref) -> Ref:
    policy = store.manifest(ref).parent("policy")
    if policy is not None and store.find(policy) is not None:
        return policy
    raise BadInputError(
        f"{ref} has tokens, and the policy whose tokenizer they are of is not there: no part of a text can be found",
        hint="take rollouts that `gradus rollout` made with a policy that is still in the lake, or mark nothing",
    )
