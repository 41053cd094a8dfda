"""How the cost of an update grows with problems, group size, length, parameters and ranks: one table.

    python benchmarks/scaling.py [--rounds 3] [--threads 1] [--ranks 2]

Each line changes one number of a base case (a random policy of 3.4 million parameters, 8 problems, groups of 8, prompts
of 64 tokens, completions of 5 to 44) and measures a whole optimiser step of Gradus as update.py does; the settings of
one number take their steps in turns, and the first of each is not counted. `times the cost` stands beside `times the
work`: the ratios to the first line of seconds and of 6 x parameters x tokens that go through the model; equal ratios
are linear growth. Ranks: they take one step over 32 problems together, the model divided by FSDP2 and exchanged by
gloo, on the cores of this machine; the work of a rank falls, and its cost should.
"""

import argparse
import platform
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import torch  # noqa: E402 - the checkout comes first
import update  # noqa: E402
from torch import distributed, multiprocessing  # noqa: E402

from gradus.models.training.parallel.ranks import Ranks  # noqa: E402
from gradus.models.training.parallel.sharding import mesh_of  # noqa: E402

BASE: dict[str, Any] = {"model": "small", "groups": 8, "group": 8, "prompt": 64, "completion": 44}
CHANGES: dict[str, list[Any]] = {
    "groups": [4, 8, 16, 32],
    "group": [4, 8, 16, 32],
    "prompt": [64, 256, 1024],
    "completion": [44, 176, 704],
    "model": ["small", "medium"],
}


def parameters(bench: update.Bench) -> int:
    """Parameters of a case's model."""
    return sum(p.numel() for p in bench.model.parameters())


def lines(name: str, rounds: int) -> list[str]:
    """Measure the settings of one number."""
    benches = [update.Bench({**BASE, name: value}) for value in CHANGES[name]]
    times: list[list[float]] = [[] for _ in benches]
    for _ in range(rounds + 1):
        for bench, found in zip(benches, times, strict=True):
            found.append(bench.step_s("gradus"))
    seconds = [statistics.median(found[1:]) for found in times]
    tokens = [bench.tokens()[1] for bench in benches]
    work = [parameters(bench) * computed for bench, computed in zip(benches, tokens, strict=True)]
    return [
        f"| {name} | {value} | {computed:,} | {took:.2f} | {took / seconds[0]:.2f} | {done / work[0]:.2f} |"
        for value, computed, took, done in zip(CHANGES[name], tokens, seconds, work, strict=True)
    ]


def rank_steps(rank: int, ranks: int, rounds: int, folder: str) -> None:
    """One rank's steps; rank 0 writes the median seconds and the tokens of a rank."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=ranks)
    bench = update.Bench({**BASE, "groups": 32}, Ranks(rank, ranks, mesh=mesh_of(ranks, torch.device("cpu"))))
    found = [bench.step_s("gradus") for _ in range(rounds + 1)]
    if rank == 0:
        Path(folder, "found").write_text(f"{statistics.median(found[1:])} {bench.tokens()[1] // ranks}")
    distributed.destroy_process_group()


def ranks_lines(most: int, rounds: int) -> list[str]:
    """Measure 1 to `most` ranks over 32 problems."""
    found: list[tuple[float, int]] = []
    for ranks in range(1, most + 1):
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(rank_steps, (ranks, rounds, folder), ranks)
            seconds, tokens = Path(folder, "found").read_text().split()
        found.append((float(seconds), int(tokens)))
    (first, whole), *_ = found
    return [
        f"| ranks, one thread each | {ranks} | {tokens:,} | {took:.2f} | {took / first:.2f} | {tokens / whole:.2f} |"
        for ranks, (took, tokens) in enumerate(found, 1)
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("rounds", 3), ("threads", 1), ("ranks", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{platform.processor() or platform.machine()}, {given.threads} threads, torch {version('torch')}")
    print("| changed | to | tokens computed | seconds | times the cost | times the work |\n|---|---|---|---|---|---|")
    for name in CHANGES:
        print("\n".join(lines(name, given.rounds)), flush=True)
    print("\n".join(ranks_lines(given.ranks, given.rounds)), flush=True)


if __name__ == "__main__":
    main()
