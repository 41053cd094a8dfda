"""What handing weights to vLLM in memory would save: a reload by parts from files, from /dev/shm, from shared memory.

    python benchmarks/handover.py [--width 768] [--layers 12] [--dtype float32] [--rounds 9]

The three are taken in turns, each from one of two random policies to the other, and end with the proof that the engine
`vllm` asks for: the files' SHA-256, checksums of every tensor, log-probs of a probe. From files: those of a checkpoint
in the lake, just written, as an update leaves them. From /dev/shm: a copy of them. From shared memory: tensors that the
worker puts into a segment without a name, which vLLM's process maps and loads from; no file is read for it. What a copy
costs before vLLM is asked is a line of its own; a trainer that computes in such memory would not have it.
Prints medians of wall seconds and of the CPU seconds of both processes.
"""

import argparse
import mmap
import os
import platform
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from gradus.data.lake.store import Ref, Store
from gradus.models.engines import vllm_core
from gradus.models.engines.probe import BOUNDS, hold_probe
from gradus.models.engines.settings import VllmConfig
from gradus.models.engines.vllm import VllmEngine, _hold_checksums
from gradus.models.engines.vllm_worker import WeightChecker
from gradus.models.policy import load_policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer

WAYS = ("files", "/dev/shm", "shared memory")
READING, COPY, LOAD = "reading alone, no part of the whole", "copy before", "load"
Layout = list[tuple[str, str, list[int], int]]
"""Of each tensor in a segment: name, number format, shape, first byte."""


class Receiver(WeightChecker):
    """What vLLM's worker does for this benchmark alone."""

    def read_files(self, folder: str) -> None:
        """Copy every tensor of a folder into memory, and load none."""
        for path in Path(folder).glob("*.safetensors"):
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    file.get_tensor(name).clone()

    def take_shared(self, path: str, layout: Layout) -> None:
        """Load the tensors of a segment, as vLLM loads those of files."""
        with Path(path).open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE, flags=mmap.MAP_PRIVATE)
        with torch.inference_mode():
            self.reload_weights(weights_iterator=_tensors(memory, layout))  # type: ignore[attr-defined]


def _tensors(memory: mmap.mmap, layout: Layout) -> Iterator[tuple[str, torch.Tensor]]:
    for name, dtype, shape, start in layout:
        count = int(torch.Size(shape).numel())
        yield name, torch.frombuffer(memory, dtype=getattr(torch, dtype), count=count, offset=start).reshape(shape)


class Segment:
    """Memory of a trainer's process that others can map."""

    def __init__(self, like: dict[str, torch.Tensor]) -> None:
        self.layout: Layout = []
        size = 0
        for name, tensor in like.items():
            self.layout.append((name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size))
            size += -(-tensor.nbytes // 64) * 64
        self._file = os.memfd_create("weights")
        os.ftruncate(self._file, size)
        self.path = f"/proc/{os.getpid()}/fd/{self._file}"
        self._held = dict(_tensors(mmap.mmap(self._file, size), self.layout))

    def put(self, tensors: dict[str, torch.Tensor]) -> None:
        """Copy the weights into it."""
        for name, tensor in tensors.items():
            self._held[name].copy_(tensor)


class Clock:
    """Seconds of parts, of the wall and of the CPUs of this process and its children."""

    def __init__(self) -> None:
        self.wall: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.cpu: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._family = [psutil.Process(), *psutil.Process().children(recursive=True)]

    def time(self, way: str, part: str, act: Callable[[], object]) -> None:
        """Measure a part of a way."""
        wall, cpu = time.perf_counter(), self._cpu()
        act()
        self.wall[way, part].append(time.perf_counter() - wall)
        self.cpu[way, part].append(self._cpu() - cpu)

    def _cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._family)


def made(store: Store, scratch: Path, options: argparse.Namespace, seed: int) -> Ref:
    """A random policy as a checkpoint of the lake."""
    heads = max(1, options.width // 64)
    policy = new_policy(
        tiny_tokenizer(), width=options.width, layers=options.layers, heads=heads, max_positions=128, seed=seed
    )
    policy.model.to(getattr(torch, options.dtype)).save_pretrained(scratch)
    policy.tokenizer.save_pretrained(scratch)
    return store.adopt(scratch)


def measure(options: argparse.Namespace, store: Store, refs: Sequence[Ref], shm: Path) -> Clock:
    """Reload in turns, round after round."""
    engine = VllmEngine(VllmConfig(enforce_eager=True), options.dtype)
    engine.load(store.path(refs[0]))
    running, clock = engine._running, Clock()  # noqa: SLF001 - its parts, one by one
    assert running is not None
    cores, held = running.cores, {ref: load_file(store.path(ref) / "model.safetensors") for ref in refs}
    segment = Segment(held[refs[0]])
    for number in range(options.rounds * len(WAYS) + len(WAYS)):
        way, ref = WAYS[number % len(WAYS)], refs[(number + 1) % 2]
        folder = store.path(ref)
        copy = shm / ref.digest
        clock.time(way, "verify the files' SHA-256", lambda ref=ref: Store(store.root).verify(ref))
        clock.time(way, READING, lambda folder=folder: cores.rpc("read_files", str(folder)))
        if way == "files":
            clock.time(way, LOAD, lambda f=folder: cores.rpc("reload_weights", weights_path=str(f)))
        elif way == "/dev/shm":
            clock.time(way, COPY, lambda f=folder, copy=copy: _copied(f, copy))
            clock.time(way, LOAD, lambda copy=copy: cores.rpc("reload_weights", weights_path=str(copy)))
        else:
            clock.time(way, COPY, lambda ref=ref: segment.put(held[ref]))
            clock.time(way, LOAD, lambda: cores.rpc("take_shared", segment.path, segment.layout))
        clock.time(way, "repack, empty the prefix cache", lambda: _settle(cores))
        running.base = folder
        clock.time(way, "checksums", lambda: _hold_checksums(running))
        clock.time(way, "probe", lambda folder=folder: _probe(engine, folder, options.dtype))
    engine.close()
    return clock


def _copied(folder: Path, copy: Path) -> None:
    copy.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())


def _settle(cores: Any) -> None:
    cores.rpc("gradus_repack")
    assert cores.reset_prefix_cache()


def _probe(engine: VllmEngine, folder: Path, dtype: Any) -> None:
    hold_probe(load_policy(folder, dtype), engine.logprobs, BOUNDS[dtype])


def report(clock: Clock) -> None:
    """Print a table of parts, and what the two others save of a whole reload from files by loading otherwise."""
    parts = list(dict.fromkeys(part for _, part in clock.wall))
    print(f"| | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}")
    for part in parts:
        print(f"| {part} | {' | '.join(_cell(clock, way, part) for way in WAYS)} |")
    for kind, seconds in (("wall", clock.wall), ("CPU", clock.cpu)):
        of_files = [seconds[WAYS[0], part] for part in parts if part not in (READING, COPY)]
        whole = statistics.median(map(sum, list(zip(*of_files, strict=True))[1:]))
        shares = [f"reading is at most {_median(seconds[WAYS[0], READING]) / whole:.1%}"]
        for way in WAYS[1:]:
            saved = _median(seconds[WAYS[0], LOAD]) - _median(seconds[way, LOAD])
            copied = saved - _median(seconds[way, COPY])
            shares.append(f"{way} saves {saved / whole:.1%}, with its copy {copied / whole:.1%}")
        print(f"of {whole:.3f} {kind} seconds from files: {'; '.join(shares)}")


def _median(rounds: Sequence[float]) -> float:
    """The first round warms up."""
    return statistics.median(rounds[1:])


def _cell(clock: Clock, way: str, part: str) -> str:
    if (way, part) not in clock.wall:
        return ""
    return f"{_median(clock.wall[way, part]):.3f} ({_median(clock.cpu[way, part]):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with (
        tempfile.TemporaryDirectory() as lake,
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryDirectory(dir="/dev/shm") as shm,
        mock.patch.object(vllm_core, "_EXTENSION", "handover.Receiver"),
    ):
        store = Store(Path(lake))
        refs = [made(store, Path(scratch), options, seed) for seed in (0, 1)]
        size = (store.path(refs[0]) / "model.safetensors").stat().st_size
        clock = measure(options, store, refs, Path(shm))
    threads = os.environ.get("OMP_NUM_THREADS", "-")
    print(f"{platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS={threads}, load {os.getloadavg()[0]:.1f}")
    print(f"{size / 1e6:.0f} MB of weights in {options.dtype}; wall seconds (CPU seconds), medians of {options.rounds}")
    report(clock)


if __name__ == "__main__":
    main()
