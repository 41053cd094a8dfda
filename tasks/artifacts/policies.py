"""A policy in the lake: a checkpoint, or an adapter beside the base that its manifest names; tokens by its tokenizer.

In the lake an adapter's configuration leads to its base by digest (`../DIGEST`), so that the adapter's own digest, and
with it the identity of every rollout, depends on both.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Ints, nulls
from gradus.data.errors import BadInputError
from gradus.data.lake.manifest import CURE, FILE_NAME, REPORT, read_manifest
from gradus.data.lake.names import regular_files
from gradus.data.lake.schema import BASE, CHECKPOINTS, PLACES, ROLLOUTS
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import is_skipped
from gradus.data.lake.whole_files import verified_files
from gradus.data.records import Problem
from gradus.models.policy_files import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    TOKENIZER_FILES,
    WEIGHTS_INDEX,
    FileError,
    read_object,
    refuse_broken,
    refuse_index,
)
from gradus.models.templates import PromptConfig
from gradus.tasks.config.learning import LoraConfig

EMA = "ema"
"""The folder of a checkpoint that holds the moving average of its weights, a policy of its own."""
_DIGEST = re.compile(r"[0-9a-f]+")

BATCH_ROWS = 1024
_TEMPLATE_TOKENS = 512
"""Tokens that a chat template may add to a question before its exact length is looked at."""
_SPECIAL_TOKENS = 4
_TEMPLATE_FILES = ("chat_template*", "tokenizer_config.json")

TOKENS, TEXT = "completion_tokens", "completion"


def base_named_by(folder: Path) -> str:
    """Return the base that an adapter's configuration names and its revision; BadInputError if it names none."""
    name, revision = (_adapter_config(folder).get(key) or "" for key in ("base_model_name_or_path", "revision"))
    if not (name and isinstance(name, str) and isinstance(revision, str)):
        raise BadInputError(
            f"{folder / ADAPTER_CONFIG} does not name the adapter's base", hint=f"write --policy {folder}+BASE"
        )
    beside = folder / name
    if not Path(name).is_absolute() and beside.is_dir() and not Path(name).exists():
        return str(beside)
    return f"{name}@{revision}" if revision and not Path(name).exists() else name


def adopt_adapter(store: Store, folder: Path, files: Mapping[str, Path], base: Ref) -> Ref:
    """Store an adapter as a checkpoint that names its base by digest; what else lies in its folder is left there."""
    if base_ref(store, base) is not None:
        raise BadInputError(f"the base of {folder} is an adapter itself", hint="give the whole policy below both")
    config = {**_adapter_config(folder)}
    named = str(config.get("base_model_name_or_path") or "").removeprefix("../").removeprefix("../")
    if len(named) == len(base.digest) and _DIGEST.fullmatch(named) and named != base.digest:
        raise BadInputError(
            f"{folder} is an adapter for another base: it was trained on {CHECKPOINTS}/{named}, not on {base}",
            hint=f"write --policy {folder}",
        )
    config |= {"base_model_name_or_path": f"../{base.digest}", "revision": None}
    if ADAPTER_WEIGHTS not in files:
        raise BadInputError(
            f"{folder} has no {ADAPTER_WEIGHTS}, and other formats can run code", hint="save it with safetensors"
        )
    kept = (ADAPTER_WEIGHTS, *TOKENIZER_FILES)
    held: dict[str, Path | bytes] = {n: path for n, path in files.items() if any(fnmatch(n, each) for each in kept)}
    held[ADAPTER_CONFIG] = json.dumps(config, indent=2, sort_keys=True).encode()
    return store.adopt_files(held, parents={BASE: [str(base)]})


def base_ref(store: Store, ref: Ref) -> Ref | None:
    """The checkpoint below an adapter; None for a whole policy."""
    return store.manifest(ref).parent(BASE)


def verify_policy(store: Store, ref: Ref) -> None:
    """Check every file of a policy, and of the base below it, against its SHA-256."""
    refuse_skipped(store, ref)
    store.verify(ref)
    if (base := base_ref(store, ref)) is not None:
        store.verify(base)


def refuse_skipped(store: Store, ref: Ref) -> None:
    """Raise BadInputError if an update was skipped, so that its artifact holds no policy."""
    if is_skipped(store, ref):
        (kept,) = store.manifest(ref).parents["policy"]
        raise BadInputError(f"{ref} is an update that was skipped, without a policy", hint=f"give {kept}")


def policy_files(folder: Path) -> dict[str, Path]:
    """Return the files of a policy's folder by name, as they are adopted; BadInputError for one that is a link.

    The moving average of a checkpoint has those that the checkpoint's manifest names, with the bytes that it says.
    """
    above = folder.parent
    if folder.name != EMA or not (above / FILE_NAME).is_file():
        found = {n: path for n, path in regular_files(folder).items() if n not in (FILE_NAME, REPORT)}
    elif entries := [each for each in read_manifest(above).files if each.name.rpartition("/")[0] == EMA]:
        verified = verified_files(above, entries, CURE)
        found = {name.removeprefix(f"{EMA}/"): path for name, path in verified.items()}
    else:
        raise BadInputError(
            f"{folder} belongs to no checkpoint: {above / FILE_NAME} names no moving average",
            hint="give a checkpoint that was trained with update.ema_decay",
        )
    refuse_other_weights(found)
    return found


def refuse_other_weights(files: Mapping[str, Path]) -> None:
    """Raise BadInputError if an index of weights names a file that is not one of the policy's."""
    for name, path in files.items():
        if name.endswith(WEIGHTS_INDEX):
            try:
                refuse_index(path)
            except FileError as error:
                raise BadInputError(str(error), hint="save the policy with save_pretrained") from None


def refuse_training(store: Store, ref: Ref, lora: LoraConfig | None = None) -> None:
    """Raise BadInputError if a policy is an adapter and no such adapter is to be trained."""
    if base_ref(store, ref) is None:
        return
    config = _adapter_config(store.path(ref))
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if lora is None:
        raise BadInputError(
            f"{ref} is an adapter: update.lora trains it, anything else needs it merged into its base",
            hint=f'set update.lora="{{rank={rank}, alpha={alpha}}}", or `gradus export {ref} --merge --to FOLDER`',
        )
    for name, found, wanted in (("rank", rank, lora.rank), ("alpha", alpha, lora.alpha)):
        if found != wanted:
            raise BadInputError(
                f"{ref} is an adapter of {name} {found}, and update.lora has {name} = {wanted}",
                hint=f'set update.lora="{{rank={rank}, alpha={alpha}}}" to continue it',
            )


def _adapter_config(folder: Path) -> Mapping[str, Any]:
    """Return an adapter's configuration; BadInputError if it, or another file of the folder, is invalid."""
    try:
        refuse_broken(folder)
        return read_object(folder / ADAPTER_CONFIG)
    except FileError as error:
        raise BadInputError(str(error), hint="save the adapter again") from None


def prompt_lengths(policy: Path, problems: Sequence[Problem], style: PromptConfig) -> Iterator[int]:
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


def refuse_long(store: Store, policy: Ref, problems: Ref, style: PromptConfig, room_tokens: int, setting: str) -> None:
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
    policy = store.manifest(ref).parent("policy")
    if policy is None or store.find(policy) is None:
        raise BadInputError(
            f"{ref} has tokens, and the policy whose tokenizer they are of is not there: no part of a text can be "
            "found",
            hint="take rollouts that `gradus rollout` made with a policy that is still in the lake, or mark nothing",
        )
    from gradus.models.policy import PolicyError, load_tokenizer  # noqa: PLC0415 - torch
    from gradus.models.token_bounds import token_bounds  # noqa: PLC0415 - torch

    try:
        tokenizer = load_tokenizer(store.path(policy))
    except PolicyError as error:
        raise BadInputError(str(error), hint=CURE) from None
    for row in there.tolist():
        found[row] = token_bounds(tokenizer, tokens[row].as_py(), texts[row].as_py())
    return found


def with_places(store: Store, refs: Sequence[Ref], parts: Sequence[pa.Table]) -> list[pa.Table]:
    """Return rollouts of some artifacts with the columns `token_starts` and `token_ends`, null for text alone."""
    found: list[pa.Table] = []
    for ref, part in zip(refs, parts, strict=True):
        bounds = bounds_of(store, ref, part)
        found.append(part)
        for side, name in enumerate(PLACES):
            values = [None if each is None else each[side] for each in bounds]
            found[-1] = found[-1].append_column(name, pa.array(values, pa.list_(pa.int64())))
    return found
