"""What `gradus runs` and `gradus show` take in a home of many training runs.

    python benchmarks/runs.py                          # 1,000 runs of 2 rounds
    python benchmarks/runs.py --runs 100 --rounds 18

Writes a home by hand: journals with the events, settings and summaries that a training run has, and a manifest for
every artifact. Prints wall seconds of `gradus --help`, of `gradus runs` the first time, again, and after one of the
runs has gone on, and of `gradus show`.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradus.data.lake.manifest import FileEntry, Manifest

ROOT = Path(__file__).parents[1]
TABLES = {
    "curate": "plan",
    "rollout": "rollouts",
    "score": "scores",
    "difficulty": "difficulty",
    "update": "checkpoints",
    "evaluate": "evaluations",
}
EVERY_ROUND = ("curate", "rollout", "score", "curate", "rollout", "score", "difficulty", "update")
EVALUATION = ("curate", "rollout", "score", "evaluate")
SETTINGS = {f"setting_{index}": 0.25 * index for index in range(24)}
COUNTS = {f"chain_sum/{n}": {"pass_at_1": 0.1 * n, "low": 0.05, "high": 0.95, "n": 24} for n in range(2, 8)}


def write_home(home: Path, num_runs: int, rounds: int) -> None:
    for number in range(num_runs):
        folder = home / "runs" / f"demo-{number:08x}"
        folder.mkdir(parents=True)
        recipe = {"name": "demo", "rounds": rounds, "evaluate": {"suites": [{"name": "heldout"}]}, **SETTINGS}
        (folder / "run.json").write_text(json.dumps({"verb": "train", "seed": number, "recipe": recipe}))
        began = 1.7e9 + 600 * number
        events = [{"event": "run_started", "time": began, "run": folder.name, "params": {"recipe": recipe}}]
        for label, pass_at_1 in _stages(rounds):
            events += _attempt(home, number, len(events), began, label, pass_at_1)
        events.append({"event": "run_finished", "time": began + 300, "status": "finished", "summary": {}, "error": ""})
        (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def _stages(rounds: int) -> Iterator[tuple[dict[str, Any], float]]:
    for index in range(rounds + 1):
        for stage in EVERY_ROUND if index else ():
            yield {"stage": stage, "round": index, "purpose": "train"}, 0.0
        for stage in EVALUATION if index in (0, rounds) else ():
            yield {"stage": stage, "round": index, "purpose": "eval"}, 0.4 + 0.2 * index / rounds


def _attempt(
    home: Path, number: int, place: int, began: float, label: dict[str, Any], pass_at_1: float
) -> list[dict[str, Any]]:
    digest = hashlib.sha256(f"{number}/{place}".encode()).hexdigest()[:32]
    output, attempt = f"{TABLES[label['stage']]}/{digest}", f"{label['stage']}-{label['round']}-{digest[:10]}"
    folder = home / "lake" / output
    folder.mkdir(parents=True)
    (folder / "part-00000.parquet").write_bytes(b"")
    file = FileEntry(name="part-00000.parquet", sha256=digest * 2, bytes=0, rows=96)
    manifest = Manifest(table=TABLES[label["stage"]], digest=digest, schema_version=2, config=SETTINGS, files=(file,))
    (folder / "_manifest.json").write_bytes(manifest.sealed().to_bytes())
    summary = {"rows": 96, "pass_at": {"1": {"value": pass_at_1}}, "per_domain": COUNTS, "suite": "heldout"}
    begun = {"event": "stage_started", "time": began + place, **label, "attempt": attempt, "output": output}
    ended = {"event": "stage_finished", "time": began + place + 1, "attempt": attempt, "status": "finished"}
    inputs = {"problems": [f"problems/{digest}"], "policy": [f"checkpoints/{digest}"]}
    rest = {"seconds": 1.0, "compute_s": 0.9, "error": "", "folder": str(folder), "metric_bytes": [0, 0]}
    return [{**begun, "config": SETTINGS, "inputs": inputs}, {**ended, **rest, "summary": summary}]


def seconds(home: Path, *arguments: str) -> float:
    kept = {**os.environ, "GRADUS_HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "gradus", *arguments]
    started = time.perf_counter()
    subprocess.run(command, env=kept, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        write_home(home, options.runs, options.rounds)
        journal = home / "runs" / "demo-00000000" / "events.jsonl"
        print(f"{options.runs} runs, journals of {journal.stat().st_size / 1000:.0f} kB")
        print(f"gradus --help             {seconds(home, '--help'):6.2f} s")
        print(f"gradus runs, first time   {seconds(home, 'runs'):6.2f} s")
        print(f"gradus runs, again        {seconds(home, 'runs'):6.2f} s")
        with journal.open("a") as file:
            file.write(json.dumps({"event": "run_started", "time": 1.8e9}) + "\n")
        print(f"gradus runs, one went on  {seconds(home, 'runs'):6.2f} s")
        print(f"gradus runs --json        {seconds(home, 'runs', '--json'):6.2f} s")
        print(f"gradus show               {seconds(home, 'show', 'demo-00000001'):6.2f} s")


if __name__ == "__main__":
    main()
