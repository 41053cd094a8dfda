"""Memory and time of saving a checkpoint and of going on from it, for a policy of some hundred million parameters.

    python benchmarks/saving.py [--width 1024] [--layers 20] [--dtype float32]

A policy with random weights and an AdamW state is written as an update writes it, then read back. Memory is the peak of
the process above what it holds before or after, of anonymous pages alone: the kernel can drop what it keeps of files.
Share: of the bytes of the model as the trainer holds it (weights, masters if it computes in bfloat16, optimiser).
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from gradus.data.lake.store import Ref, Store
from gradus.models.policy import Policy, load_policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.checkpoint import SavedDtype
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.state import TrainState
from gradus.models.training.train_state_files import restore_train_state
from gradus.tasks.stages.update.train_state import state_writers, write_checkpoint, write_train_state

_EVERY_S = 0.002


def main() -> None:
    """Print one line for each act."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), options.width, options.layers, options.dtype)


def _measure(folder: Path, width: int, layers: int, dtype: SavedDtype) -> None:
    policy = new_policy(tiny_tokenizer(), width=width, layers=layers, heads=16, max_positions=64, seed=0)
    policy.model.to(getattr(torch, dtype))
    state = TrainState.new(policy.model, UpdateSettings(lr=1e-5), 0)
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
        write_train_state(store.writer(kept), ref, out.entries, state_writers(state, dtype, {}))

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
    return seconds, peak - max(before, _anonymous(process))


def _anonymous(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


if __name__ == "__main__":
    main()
