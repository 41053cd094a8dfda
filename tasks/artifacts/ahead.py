"""For looking ahead: a store that leaves no trace, the memory that a run takes, and pass rates that the lake knows.

    with overlay(lake) as store:
        store.put("problems", rows)      # in the lake if it is there, otherwise in a folder that is removed at the end

Memory is computed from the sizes in a policy's files; no tensor is loaded. Left out: activations and logits, which
micro_tokens and batch_rows bound, and what PyTorch itself takes.
"""

import contextlib
import json
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from safetensors import safe_open

from gradus.data.arrays import Ints, bools, floats, ints, nulls, one_array, pc, positions, ragged, take_or_null
from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.manifest import FILE_NAME
from gradus.data.lake.names import artifacts_of
from gradus.data.lake.schema import DIFFICULTY, OWN, ROLLOUTS
from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.models.engines.settings import CPU_CACHE_GIB
from gradus.models.policy_files import CONFIG
from gradus.tasks.artifacts.policies import base_ref
from gradus.tasks.config.curation import SampleConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RolloutConfig

_FLOAT32 = 4
_TRAINED = 4
"""Weights, gradients and AdamW's two moments, in float32 each."""
_NF4 = (4 + 0.127) / 8
"""Bytes a weight in NF4 with scales that are quantised, too (QLoRA, arXiv 2305.14314, section 3)."""
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_COLUMNS = ("problem_id", "n", "k", "policies")


class Overlay(Store):
    """A lake, with a folder of its own for every artifact that the lake does not have."""

    def __init__(self, lake: Path, scratch: Path) -> None:
        super().__init__(lake)
        self._scratch = scratch
        self._own: set[Ref] = set()

    def path(self, ref: Ref) -> Path:
        """The folder of an artifact: the lake's if it is finished there."""
        theirs = super().path(ref)
        is_theirs = ref not in self._own and (theirs / FILE_NAME).is_file()
        return theirs if is_theirs else self._scratch / ref.table / ref.digest

    @contextlib.contextmanager
    def missing(self, ref: Ref) -> Generator[ShardWriter | None]:
        """Return the writer of an artifact that neither the lake nor this store has whole."""
        if self.find(ref) is None:
            self._own.add(ref)
        with super().missing(ref) as writer:
            yield writer

    def writer(self, ref: Ref) -> ShardWriter:
        """Begin an artifact, which goes to the folder of this store."""
        self._own.add(ref)
        return _LinkingWriter(self.path(ref), ref)


class _LinkingWriter(ShardWriter):
    def copy_file(self, name: str, source: Path) -> None:
        """Link a file: a policy of many gigabytes is not copied only to look ahead."""
        final = self.folder / name
        final.unlink(missing_ok=True)
        final.symlink_to(source.resolve())
        self._receive(name)


@contextlib.contextmanager
def overlay(lake: Path) -> Generator[Overlay]:
    """A store above a lake whose own folder is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="gradus-") as scratch:
        yield Overlay(lake, Path(scratch))


def footprint(
    store: Store,
    policy: Ref,
    sample: SampleConfig,
    rollout: RolloutConfig,
    update: UpdateConfig,
    *,
    separate_sampler: bool,
) -> tuple[int, int]:
    """Return the bytes that a sampling and an update need; `separate_sampler` loads the sampler's weights twice."""
    tensors = list(_tensors(store, policy))
    num_parameters, saved = sum(each.size for each in tensors), _most_frequent_dtype(tensors)
    dtype = saved if rollout.dtype == "auto" else rollout.dtype
    sampler = num_parameters * _BYTES.get(dtype, _FLOAT32)
    reference = num_parameters * _BYTES[update.dtype] if update.loads_reference else 0
    stepped = _FLOAT32 * (_TRAINED + bool(update.ema_decay))
    if update.lora is None:
        narrow = _BYTES[update.dtype] if update.dtype != "float32" else 0
        trained = num_parameters * (stepped + narrow) + reference
    else:
        lora, num_tokens = update.lora, _config(store, policy).get("vocab_size")
        below = [each for each in tensors if ".lora_" not in each.name]
        # What LoRA can adapt: no embedding and no output layer.
        linear = [each for each in below if len(each.shape) == 2 and each.shape[0] != num_tokens]
        ends = "" if lora.targets == "all-linear" else lora.targets
        adapted = (each.shape for each in linear if each.name.removesuffix(".weight").endswith(ends))
        matrices = sum(lora.rank * sum(shape) for shape in adapted)
        quantised = sum(each.size for each in linear) if lora.quantize == "nf4" else 0
        frozen = round(_BYTES[update.dtype] * (sum(each.size for each in below) - quantised) + _NF4 * quantised)
        # The base of a new adapter is its own reference, with the adapter left out.
        trained = frozen + stepped * matrices + (reference if base_ref(store, policy) else 0)
    needed = sampler + _cache(store, policy, sample, rollout, dtype)
    return needed, trained + (sampler if separate_sampler else 0)


def _cache(store: Store, policy: Ref, sample: SampleConfig, rollout: RolloutConfig, dtype: str) -> int:
    """Keys and values of the completions generated together; prompts come on top."""
    if rollout.engine == "openai":
        return 0
    if rollout.engine == "vllm":
        return CPU_CACHE_GIB * 2**30
    config = _config(store, policy)
    heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 0
    width = config.get("head_dim") or config.get("hidden_size", 0) // max(1, config.get("num_attention_heads") or 1)
    per_token = 2 * heads * width * (config.get("num_hidden_layers") or 0) * _BYTES.get(dtype, _FLOAT32)
    return per_token * sample.max_tokens * rollout.batch_rows


@dataclass(frozen=True)
class _Tensor:
    """A tensor of a policy's files."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size(self) -> int:
        return prod(self.shape)


def _tensors(store: Store, policy: Ref) -> Iterator[_Tensor]:
    """The tensors of a policy, and of the base below an adapter."""
    folders = [store.path(ref) for ref in (policy, base_ref(store, policy)) if ref is not None]
    for path in sorted(path for folder in folders for path in folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                part = file.get_slice(name)
                yield _Tensor(name, tuple(part.get_shape()), part.get_dtype())


def _most_frequent_dtype(tensors: Sequence[_Tensor]) -> str:
    """The number format of most parameters."""
    count: Counter[str] = Counter()
    for each in tensors:
        count[each.dtype] += each.size
    ((most, _),) = count.most_common(1) or [("F32", 0)]
    return {"BF16": "bfloat16", "F16": "float16"}.get(most, "float32")


def _config(store: Store, policy: Ref) -> dict[str, Any]:
    """The settings of a policy's architecture; those of the text part of one that also reads images."""
    config = json.loads(store.read_file(base_ref(store, policy) or policy, CONFIG) or b"{}")
    return config["text_config"] if isinstance(config.get("text_config"), dict) else config


@dataclass(frozen=True)
class KnownRates:
    """Judged rollouts n and right ones k of each problem (P,), n = 0 if none is known."""

    n: Ints
    k: Ints
    tables: tuple[Ref, ...]
    """The difficulty tables that were read."""


def rates_in(store: Store, difficulty: Ref, problem_ids: pa.Array) -> KnownRates:
    """Return the counts of one table for problems (P,), of whichever policy it was measured with."""
    return _merged(problem_ids, [(difficulty, store.read(difficulty, ["problem_id", "n", "k"]))])


def rates_of(store: Store, policy: Ref, temperature: float, problem_ids: pa.Array) -> KnownRates:
    """Return the counts of all tables of the lake for problems (P,), with a policy that sampled at a temperature.

    Tables of a run extend each other, so that their counts cannot be added: of each problem the largest n counts.
    Tables whose rollouts are not in the lake are left out, as their temperature is unknown, and damaged ones.
    """
    found: list[tuple[Ref, pa.Table]] = []
    for ref in artifacts_of(store.root, DIFFICULTY.name):
        with contextlib.suppress(CorruptArtifactError):  # of another run: no reason to forecast nothing
            if _is_by(store, ref, policy, temperature):
                found.append((ref, _of_policy(store.read(ref, _COLUMNS), policy)))
    return _merged(problem_ids, found)


def tokens_of(store: Store, tables: Sequence[Ref]) -> float | None:
    """Return the mean tokens of the completions that tables were measured by; None if no token ids are there.

    Completions with a hint, of another's prompt, and texts that were given are left out.
    """
    total = num = 0
    for ref in dict.fromkeys(each for table in tables for each in _rollouts(store, table)):
        rows = store.read(ref, ["completion_tokens", "hint_level", "origin", "messages"])
        bare = bools(pc.equal(pc.coalesce(ROLLOUTS.column(rows, "origin"), OWN), OWN))
        bare &= (ints(rows.column("hint_level")) == 0) & nulls(ROLLOUTS.column(rows, "messages"))
        lengths = floats(pc.list_value_length(one_array(rows.column("completion_tokens"))))[bare]
        total, num = total + np.nansum(lengths), num + int((~np.isnan(lengths)).sum())
    return float(total / num) if num else None


def _merged(problem_ids: pa.Array, found: Sequence[tuple[Ref, pa.Table]]) -> KnownRates:
    n = k = np.zeros(len(problem_ids), dtype=np.int64)
    read: list[Ref] = []
    for ref, rows in found:
        at = positions(problem_ids, rows.column("problem_id"))
        new_n, new_k = (ints(take_or_null(rows.column(name), at)) for name in ("n", "k"))
        if (more := new_n > n).any():
            n, k = np.where(more, new_n, n), np.where(more, new_k, k)
            read.append(ref)
    return KnownRates(n, k, tuple(read))


def _is_by(store: Store, difficulty: Ref, policy: Ref, temperature: float) -> bool:
    """Return whether the newest rollouts of a table were sampled by a policy at a temperature."""
    rollouts = _rollouts(store, difficulty)
    by = {text for each in rollouts for text in store.manifest(each).parents.get("policy", [])}
    return str(policy) in by and any(_temperature(store, each) == temperature for each in rollouts)


def _rollouts(store: Store, difficulty: Ref) -> list[Ref]:
    """Return the rollouts that a table was measured by, those of them that are there; empty for a damaged table."""
    manifest = store.find(difficulty)
    named = manifest.parents.get("rollouts", []) if manifest is not None else []
    return [ref for ref in map(Ref.parse, named) if store.find(ref) is not None]


def _temperature(store: Store, rollouts: Ref) -> float | None:
    """Return the temperature of the first row, by the plan if it is there: a small table, which is sooner verified."""
    plans = [Ref.parse(text) for text in store.manifest(rollouts).parents.get("plan", [])]
    source = next((ref for ref in plans if store.find(ref) is not None), rollouts)
    column = store.read(source, ["temperature"]).column("temperature")
    return column[0].as_py() if len(column) else None


def _of_policy(rows: pa.Table, policy: Ref) -> pa.Table:
    """Return the rows whose n and k are of a policy: the newest one that measured them."""
    offsets, values = ragged(rows.column("policies"))
    last = np.where(np.diff(offsets) > 0, offsets[1:] - 1, -1)
    return rows.filter(pc.equal(take_or_null(values, last), pa.scalar(policy.digest)))
