"""Memory and time of saving a checkpoint and of going on from it, for a policy of some hundred million parameters.

    python benchmarks/saving.py [--width 1024] [--layers 22] [--dtype float32]
    python benchmarks/saving.py --ranks 2 [--rounds 3]

A policy with random weights and an AdamW state is written as an update writes it, then read back. Memory is the peak of
the process above what it holds before or after, of anonymous pages alone: the kernel can drop what it keeps of files.
Share: of the bytes of the model as the trainer holds it (weights, masters if it computes in bfloat16, optimiser).

With ranks the model is divided by FSDP2 among processes that exchange by gloo, and what they hold is saved in several
ways, in turns: by one writer, to which all tensors are gathered on all ranks (as Gradus did before it divided files);
by torch.distributed.checkpoint; by files divided among ranks. All end on the disk (fsync). Figures are medians over
rounds: seconds of the slowest rank, a core's seconds of the busiest one, memory of the one that needs most of it.
TMPDIR=/dev/shm leaves the disk out.
"""

import argparse
import ctypes
import hashlib
import json
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, multiprocessing
from torch.distributed import checkpoint as dcp

from gradus.data.lake.manifest import sha256_file
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import Policy, load_policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.checkpoint import SavedDtype, write_policy
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.parallel.sharding import mesh_of, shard, whole
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.models.training.tensor_files import tensor_files
from gradus.models.training.train_state_files import restore_train_state
from gradus.tasks.artifacts.writing import written
from gradus.tasks.stages.update.train_state import state_contents, write_checkpoint, write_train_state

_EVERY_S = 0.002
_LIBC = ctypes.CDLL(None)
"""Gives back to the system what was freed, which would hide what is taken again."""


def main() -> None:
    """Print one line for each act."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.ranks > 1:
            sizes = (options.width, options.layers, options.rounds)
            multiprocessing.spawn(_rank, (options.ranks, folder, *sizes), options.ranks)
            return
        _measure(Path(folder), options.width, options.layers, options.dtype)


def _rank(rank: int, num_ranks: int, folder: str, width: int, layers: int, rounds: int) -> None:
    """One rank; the first prints a line for each way of saving."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=num_ranks)
    mesh = mesh_of(num_ranks, torch.device("cpu"))
    assert mesh is not None
    policy = new_policy(tiny_tokenizer(), width=width, layers=layers, heads=16, max_positions=64, seed=0)
    shard(policy.model, mesh, torch.float32)
    bench = _Saving(policy, Ranks(rank, num_ranks, mesh=mesh))
    found: dict[str, list[_Saved]] = {name: [] for name in bench.ways}
    for _ in range(rounds):
        for name, way in bench.ways.items():
            found[name].append(bench.measured(way, Path(folder, "saved")))
    if rank == 0:
        print(f"{sum(p.numel() for p in policy.model.parameters()) / 1e6:.0f} million parameters, {num_ranks} ranks")
        for name, measured in found.items():
            seconds, cpu_s, num_bytes, peak = (statistics.median(each) for each in zip(*measured, strict=True))
            print(
                f"{name}: {seconds:.1f} s ({min(measured)[0]:.1f} to {max(measured)[0]:.1f}), {cpu_s:.1f} s of a core, "
                f"{num_bytes / 1e9:.2f} GB written, {peak / 1e9:+.2f} GB"
            )
    distributed.destroy_process_group()


class _Saved(NamedTuple):
    """What saving took."""

    seconds: float
    """Of the slowest rank."""
    cpu_s: float
    """Of the busiest rank."""
    num_bytes: int
    """On the disk."""
    peak_bytes: int
    """Of the rank that needs most memory."""


class _Saving:
    """Ways to save what ranks hold, each to an empty folder."""

    def __init__(self, policy: Policy, ranks: Ranks) -> None:
        self.policy, self.ranks = policy, ranks
        state = TrainState.new(policy.model, StepConfig(lr=1e-5), 0)
        for master in state.masters.values():
            master.grad = torch.ones_like(master)
        state.advance()
        state.zero_grad()
        self.weights = {name: parameter.detach() for name, parameter in state.masters.items()}
        self.moments: dict[str, Tensor] = {
            f"{key}.{name}": value
            for name, master in state.masters.items()
            for key, value in state.optimizer.state[master].items()
        }
        self.ways: dict[str, Callable[[Path], None]] = {
            "train state, one writer": self.one_writer,
            "train state, torch.distributed.checkpoint": self.dcp,
            "train state, torch.distributed.checkpoint and digests": self.dcp_digests,
            "train state, files divided among ranks": self.divided,
            "policy, one writer": self.policy_one_writer,
            "policy, HuggingFaceStorageWriter, consolidated": self.policy_consolidated,
        }

    def measured(self, way: Callable[[Path], None], folder: Path) -> _Saved:
        """Save once, and remove what was saved."""
        if self.ranks.writes:
            folder.mkdir()
        self.ranks.wait()
        began_s = time.process_time()
        seconds, peak = _peak_of(lambda: way(folder))
        own = [seconds, time.process_time() - began_s, peak]
        heard = zip(*map(json.loads, self.ranks.gathered(json.dumps(own).encode())), strict=True)
        slowest, busiest, largest = (max(each) for each in heard)
        num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self.ranks.wait()
        if self.ranks.writes:
            shutil.rmtree(folder)
            os.sync()
        self.ranks.wait()
        return _Saved(slowest, busiest, num_bytes, largest)

    def one_writer(self, folder: Path) -> None:
        """Gather a file of 2 GiB on all ranks; rank 0 writes it."""
        parts: list[dict[str, Tensor]] = [{}]
        for name, tensor in self.moments.items():
            if sum(each.nbytes for each in parts[-1].values()) + tensor.nbytes > 2 << 30:
                parts.append({})
            parts[-1][name] = tensor
        for index, part in enumerate(parts):
            found: dict[str, Tensor] = {}
            for name, tensor in part.items():
                gathered = whole(tensor)
                if self.ranks.writes:
                    found[name] = gathered
            if self.ranks.writes:
                save_file(found, folder / f"{index}.safetensors")
                _settle(folder / f"{index}.safetensors")

    def dcp(self, folder: Path) -> None:
        """Each rank writes its parts, in files of torch's own."""
        dcp.save(dict(self.moments), storage_writer=dcp.FileSystemWriter(folder))

    def dcp_digests(self, folder: Path) -> None:
        """As before, with the digests of a manifest."""
        self.dcp(folder)
        for path in folder.glob(f"__{self.ranks.rank}_*"):
            sha256_file(path)

    def divided(self, folder: Path) -> None:
        """As an update writes it."""
        written(tensor_files("optimizer", self.moments), folder, self.ranks)

    def policy_one_writer(self, folder: Path) -> None:
        """As an update writes it."""
        write_policy(self.policy, folder if self.ranks.writes else None, lambda _name, path: _settle(path))

    def policy_consolidated(self, folder: Path) -> None:
        """Each rank writes its parts as safetensors, then all are written again as whole tensors."""
        writer = dcp.HuggingFaceStorageWriter(str(folder), save_distributed=True, enable_consolidation=True)
        dcp.save(dict(self.weights), storage_writer=writer)
        if self.ranks.writes:
            for path in folder.glob("*.safetensors"):
                _settle(path)


def _settle(path: Path) -> None:
    """Bring a file to the disk and compute its digest, as the lake does."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        hashlib.file_digest(file, "sha256")


def _measure(folder: Path, width: int, layers: int, dtype: SavedDtype) -> None:
    policy = new_policy(tiny_tokenizer(), width=width, layers=layers, heads=16, max_positions=64, seed=0)
    policy.model.to(getattr(torch, dtype))
    state = TrainState.new(policy.model, StepConfig(lr=1e-5), 0)
    for master in state.masters.values():
        master.grad = torch.ones_like(master)
    state.advance()
    state.zero_grad()
    num_parameters = sum(p.numel() for p in policy.model.parameters())
    held = num_parameters * (12 if dtype == "float32" else 14)
    print(f"{num_parameters / 1e6:.0f} million parameters, {dtype}: {held / 1e9:.2f} GB in training")
    store, ref = Store(folder / "lake"), Ref("checkpoints", "0" * 32)
    out = store.writer(ref)

    def save_policy() -> None:
        write_checkpoint(out, policy, state, dtype, repeats=True)

    kept = Ref("train_states", "1" * 32)

    def save_state() -> None:
        write_train_state(store.writer(kept), ref, out.entries, state_contents(state, dtype, {}))

    def go_on() -> None:
        files = {path.name: path for path in store.path(kept).glob("[a-z]*") if path.is_file()}
        state.optimizer.state.clear()
        restore_train_state(state, files)

    for name, act in (("save the policy", save_policy), ("save the train state", save_state), ("go on", go_on)):
        seconds, peak = _peak_of(act)
        print(f"{name}: {seconds:.1f} s, {peak / 1e9:+.2f} GB at most ({peak / held:+.2f} of the model)")
    _check(policy, folder / "lake" / str(ref))


def _check(policy: Policy, folder: Path) -> None:
    saved = dict(load_policy(folder).model.named_parameters())
    same = all(torch.equal(saved[name], parameter) for name, parameter in policy.model.named_parameters())
    print("the files hold the policy" if same else "THE FILES DO NOT HOLD THE POLICY")


def _peak_of(act: Callable[[], None]) -> tuple[float, int]:
    """Seconds, and the bytes of anonymous memory that were held at most above those of before."""
    process, done = psutil.Process(), threading.Event()
    _LIBC.malloc_trim(0)
    before = _anonymous(process)
    peak = before

    def watch() -> None:
        nonlocal peak
        while not done.wait(_EVERY_S):
            peak = max(peak, _anonymous(process))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.perf_counter()
    act()
    seconds = time.perf_counter() - started
    done.set()
    watcher.join()
    _LIBC.malloc_trim(0)
    return seconds, peak - max(before, _anonymous(process))


def _anonymous(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


if __name__ == "__main__":
    main()
