"""Generating ahead beside waiting: wall time and reward curve of one recipe, with `--overlap 1` and without.

    python benchmarks/overlap.py --rounds 18 --seeds 1 2 3

Each run has a home of its own, so that none reuses another's artifacts; the two ways take turns, and which goes first
changes with every seed. Prints one table: seconds of the run and of its rounds alone, pass@1 on the held-out problems,
mean training reward of every round.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradus.tasks.runs.journal import read_events, read_lines

ROOT = Path(__file__).parents[1]
WAYS = {"synchronous": "0", "overlap 1": "1"}


@dataclass(frozen=True)
class Run:
    """What one run came to; seconds of wall time, rewards by round."""

    way: str
    seed: int
    seconds: float
    rounds_s: float
    before: float
    after: float
    rewards: list[float]


def environment(home: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "GRADUS_", "MLFLOW_"))}
    return {**kept, "GRADUS_HOME": str(home), "PYTHONPATH": str(ROOT / "src")}


def gradus(home: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "gradus", *arguments]
    return subprocess.run(
        command, env=environment(home), cwd=home, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def measure(fresh: Path, scratch: Path, way: str, seed: int, options: argparse.Namespace) -> Run:
    """One run in a new home with databases that are ready."""
    home = scratch / f"{way.replace(' ', '-')}-{seed}"
    shutil.copytree(fresh, home)
    chosen = ["--rounds", str(options.rounds), "--set", f"seed={seed}", "--overlap", WAYS[way]]
    result: Mapping[str, Any] = json.loads(gradus(home, "train", options.recipe, *chosen, "--json"))
    folder = home / "runs" / result["run"]
    return Run(
        way=way,
        seed=seed,
        seconds=result["seconds"],
        rounds_s=seconds_of_rounds(folder),
        before=result["before"]["pass_at"]["1"]["value"],
        after=result["after"]["pass_at"]["1"]["value"],
        rewards=rewards(folder),
    )


def seconds_of_rounds(folder: Path) -> float:
    """From the first round's first stage to the end of the last update: without profile, evaluations, start and end."""
    begun: dict[str, float] = {}
    ended: list[float] = []
    for event in read_events(folder):
        if event["event"] == "stage_started" and event["round"] and event["purpose"] != "eval":
            begun[event["attempt"]] = event["time"]
        elif event["event"] == "stage_finished" and event["attempt"] in begun:
            ended.append(event["time"])
    return max(ended) - min(begun.values())


def rewards(folder: Path) -> list[float]:
    """Mean reward of the rollouts that each round's update learnt from, in the order of the rounds."""
    rows = [row for row, _ in read_lines(folder / "metrics.jsonl") if row["stage"] == "update" and row["step"] is None]
    return [row["metrics"]["trained/reward_mean"] for row in sorted(rows, key=lambda row: row["round"])]


def show(runs: list[Run]) -> None:
    print(f"{'':<20}seed  seconds  rounds  pass@1 before  after  mean reward of each round")
    for way in WAYS:
        of = [run for run in runs if run.way == way]
        for run in of:
            print(f"{way:<20}{run.seed:>4}  {figures([run])}")
        print(f"{'median, ' + way:<20}      {figures(of)}")


def figures(runs: list[Run]) -> str:
    """Medians of some runs."""
    seconds, rounds_s, before, after = (
        statistics.median(getattr(run, name) for run in runs) for name in ("seconds", "rounds_s", "before", "after")
    )
    curve = " ".join(f"{statistics.median(of):.2f}" for of in zip(*(run.rewards for run in runs), strict=True))
    return f"{seconds:>7.1f}  {rounds_s:>6.1f}  {before:>13.3f}  {after:>5.3f}  {curve}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    runs: list[Run] = []
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        fresh = scratch / "fresh"
        fresh.mkdir()
        gradus(fresh, "setup")
        for turn, seed in enumerate(options.seeds):
            order = list(WAYS)[:: 1 if turn % 2 == 0 else -1]
            runs += [measure(fresh, scratch, way, seed, options) for way in order]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; {options.recipe}")
    show(runs)


if __name__ == "__main__":
    main()
