"""Make the ladder's problems and starts anew: `python benchmarks/ladder/make.py FOLDER` (20 minutes on two cores).

The starts are policies of 0.11 million parameters: `gradus warmstart` on clean solutions, then 100 steps on those of a
sloppy student. `starts/eta-0.1` and `starts/eta-0.3` are what this wrote; problems are written by each `make ladder`.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from task import ANSWER, problems, write

LONG, ALL = (6, 7, 8), (3, 4, 5, 6, 7, 8)
NUM_TRAINED, NUM_HELD_OUT, NUM_CLEAN, NUM_SLOPPY = 2_000, 400, 40_000, 9_600
CLEAN = ("width=64", "layers=2", "heads=2", "steps=2000", "decay_steps=2000", "batch_rows=96", "lr=3e-3")
SLOPPY = ("steps=100", "decay_steps=100", "warmup_steps=10", "batch_rows=96", "lr=1e-3")
ETAS = (0.1, 0.3)


def write_problems(folder: Path) -> set[str]:
    """Write the problems to evaluate with and to train on, hard ones and mixed; return all of their questions."""
    known = set[str]()
    for seed, (name, count, lengths) in enumerate(
        (("held_out", NUM_HELD_OUT, LONG), ("hard", NUM_TRAINED, LONG), ("mixed", NUM_TRAINED, ALL))
    ):
        known |= write(folder / f"{name}.jsonl", problems(count, lengths, np.random.default_rng(seed), known))
    return known


def write_lessons(folder: Path, known: set[str]) -> None:
    """Write the solutions that the starts are made of; no problem of the ladder is among them."""
    write(folder / "clean.jsonl", problems(NUM_CLEAN, ALL, np.random.default_rng(4), known))
    for eta in ETAS:
        write(folder / f"sloppy-{eta}.jsonl", problems(NUM_SLOPPY, ALL, np.random.default_rng(5), known, eta))


def warmstart(folder: Path, lessons: str, settings: tuple[str, ...], out: str, policy: str = "") -> None:
    """Train a policy with `gradus warmstart`."""
    words = [word for text in (*settings, f'template="{ANSWER}"') for word in ("--set", text.replace("\n", "\\n"))]
    begun = ["--policy", policy] if policy else []
    command = [sys.executable, "-m", "gradus", "warmstart", "--problems", lessons, *begun, *words, "--out", out]
    subprocess.run(command, cwd=folder, check=True)


def main() -> None:
    """Write everything into a folder."""
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    write_lessons(folder, write_problems(folder))
    warmstart(folder, "clean.jsonl", CLEAN, "clean")
    for eta in ETAS:
        shutil.rmtree(folder / f"eta-{eta}", ignore_errors=True)
        warmstart(folder, f"sloppy-{eta}.jsonl", SLOPPY, f"eta-{eta}", "clean")


if __name__ == "__main__":
    main()
