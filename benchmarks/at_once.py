"""Commands begun together in a fresh home: how many of them end well.

    python benchmarks/at_once.py [--numbers 2,4,8] [--times 3] [--verb train] [--reports later]

Each time N commands begin at the same moment in a home that nobody has used: trainings of the tests' tiny recipe, every
one a run of its own, with the same problems, policy and seed (`--verb train`); or `ingest`, `hint`, `curate` and
`ingest` again of one file (`--verb quick`). They create the home's databases, start its Prefect server, adopt the same
policy and need the same artifacts. `--reports now` has each of them report to MLflow too. A row of the table has the
number of commands, those that failed, and seconds until the last one ended; the first sentence of each kind of failure
follows.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from common import ROOT, environment

SAMPLES = ROOT / "data" / "samples"
RECIPE = ROOT / "tests" / "e2e" / "tiny.toml"
QUICK = (
    ("ingest", "train.jsonl"),
    ("hint", "--problems", "train.jsonl"),
    ("curate", "--problems", "train.jsonl"),
    ("ingest", "heldout.jsonl"),
)


def laid_out(home: Path) -> None:
    """Write the problems that the recipe names."""
    for name, every in (("train", 7), ("heldout", 3)):
        rows = pq.read_table(SAMPLES / f"{name}.parquet", columns=["question", "answer", "solution", "domain"])
        rows.take(list(range(0, rows.num_rows, every))).to_pandas().to_json(
            home / f"{name}.jsonl", orient="records", lines=True
        )


def command(verb: str, index: int) -> list[str]:
    """Return the arguments of the command with this number."""
    if verb == "train":
        return ["train", str(RECIPE), "--run", f"run-{index}"]
    return list(QUICK[index % len(QUICK)])


def together(number: int, verb: str, reports: str) -> tuple[list[str], float]:
    """Begin commands together in a fresh home; return the last line of each that failed, and seconds."""
    with tempfile.TemporaryDirectory(prefix="at-once-", ignore_cleanup_errors=True) as name:
        home = Path(name)
        laid_out(home)
        env = environment(home, GRADUS_SERVER_IDLE_S="0", GRADUS_REPORT=reports, OMP_NUM_THREADS="1")
        began = time.perf_counter()
        processes: list[subprocess.Popen[bytes]] = []
        for index in range(number):
            with (home / f"stderr-{index}").open("wb") as err:
                arguments = [sys.executable, "-P", "-m", "gradus", *command(verb, index), "--json"]
                processes.append(subprocess.Popen(arguments, cwd=home, env=env, stdout=subprocess.DEVNULL, stderr=err))
        codes = [process.wait() for process in processes]
        seconds = time.perf_counter() - began
        said = [(home / f"stderr-{index}").read_text().strip().splitlines() for index in range(number)]
        settle(name)
        failures = [(lines or ["nothing"])[-1] for code, lines in zip(codes, said, strict=True) if code]
        return [failure.replace(name, "HOME") for failure in failures], seconds


def settle(home: str) -> None:
    """Wait until servers and reporters of a home have ended, so that nothing is measured twice."""

    def is_of_home(process: psutil.Process) -> bool:
        try:
            return process.environ().get("GRADUS_HOME") == home and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    while any(map(is_of_home, psutil.process_iter())):
        time.sleep(0.5)


def main() -> None:
    """Print one row a number of commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", default="2,4,8")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--verb", choices=("train", "quick"), default="train")
    parser.add_argument("--reports", choices=("now", "later"), default="later")
    given = parser.parse_args()
    print("| commands together | times | homes with a failure | commands that failed | seconds (median) |")
    print("|---|---|---|---|---|")
    failures: Counter[str] = Counter()
    for number in map(int, given.numbers.split(",")):
        ends = [together(number, given.verb, given.reports) for _ in range(given.times)]
        failed = [failure for found, _ in ends for failure in found]
        failures.update(failed)
        homes, seconds = sum(bool(found) for found, _ in ends), statistics.median(each for _, each in ends)
        print(
            f"| {number} {given.verb} | {given.times} | {homes} | {len(failed)} of {number * given.times} "
            f"| {seconds:.0f} |",
            flush=True,
        )
    for failure, count in failures.most_common():
        print(f"{count} × {failure}")


if __name__ == "__main__":
    main()
