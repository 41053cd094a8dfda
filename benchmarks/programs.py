"""Programs a second of the reward `program`, beside a plain subprocess a program and a bubblewrap a program.

    python benchmarks/programs.py                    # 300 programs, five turns
    python benchmarks/programs.py --memory 10000     # memory of a judge, its sandbox and the machine

Each program reads two numbers and prints their sum; half of them print something else. Turns are interleaved, judges
are warm. `subprocess` runs `python -I -c` with no isolation, `bwrap` the same in a bubblewrap of its own.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import psutil  # noqa: E402 - the checkout comes first
from common import print_rates  # noqa: E402

from gradus.models.judging.pool import JudgePool  # noqa: E402
from gradus.models.rewards import resolve  # noqa: E402

CODE = "a, b = map(int, input().split())\nprint(a + b)"
Row = dict[str, object]


def rows_of(num_rows: int, num_tests: int) -> list[Row]:
    """Programs, every second of which is wrong, with their tests."""
    rows = list[Row]()
    for at in range(num_rows):
        code = CODE if at % 2 else CODE.replace("+", "-")
        tests = {"inputs": [f"{at} {i + 1}" for i in range(num_tests)]}
        tests["outputs"] = [str(at + i + 1) for i in range(num_tests)]
        rows.append({"completion": f"```python\n{code}\n```", "answer": None, "tests": tests, "code": code})
    return rows


def pooled(rows: list[Row], num_workers: int) -> tuple[Callable[[], float], JudgePool]:
    """Return an act that judges the rows by a warm pool, and the pool."""
    pool = JudgePool(resolve("program", {"score": "share"}), num_workers=num_workers)
    pool.judge(rows[: 8 * num_workers])
    return lambda: sum(each.verdict.value or 0.0 for each in pool.judge(rows)) / len(rows), pool


def plain(rows: list[Row], before: list[str]) -> Callable[[], float]:
    """Return an act that starts an interpreter for each test."""

    def act() -> float:
        passed = num_tests = 0
        for row in rows:
            tests = row["tests"]
            assert isinstance(tests, dict)
            for given, wanted in zip(tests["inputs"], tests["outputs"], strict=True):
                command = [*before, sys.executable, "-I", "-c", str(row["code"])]
                done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=5, check=False)
                passed += done.stdout.strip() == wanted
                num_tests += 1
        return passed / num_tests

    return act


def speed(num_rows: int, num_tests: int, turns: int) -> None:
    """Print programs a second: median of the turns."""
    rows = rows_of(num_rows, num_tests)
    acts: dict[str, Callable[[], float]] = {"subprocess": plain(rows, [])}
    if bwrap := shutil.which("bwrap"):
        acts["bwrap"] = plain(rows, [bwrap, "--unshare-all", "--ro-bind", "/", "/", "--die-with-parent"])
    pools = [pooled(rows, num_workers) for num_workers in (1, 2)]
    acts |= {f"program, {at} judges": act for at, (act, _) in enumerate(pools, 1)}
    print(f"{num_rows} programs of {num_tests} tests, {turns} turns")
    print_rates(acts, num_rows, turns, "programs/s")
    for _, pool in pools:
        pool.close()


def family_bytes(pool: JudgePool) -> tuple[int, int]:
    """Memory and number of a judge and all below it."""
    (judge,) = [psutil.Process(pid) for pid in pool.pids]
    family = [judge, *judge.children(recursive=True)]
    return sum(each.memory_info().rss for each in family), len(family)


def memory(num_rows: int) -> None:
    """Print the memory of a judge with its sandbox at first and after many programs."""
    act, pool = pooled(rows_of(num_rows, 1), 1)
    used, (before, num_before) = psutil.virtual_memory().used, family_bytes(pool)
    act()
    after, num_after = family_bytes(pool)
    grown = (psutil.virtual_memory().used - used) / 1e6
    first, last = (
        f"{size / 1e6:.0f} MB in {num} processes" for size, num in ((before, num_before), (after, num_after))
    )
    print(f"{num_rows:,} programs: {first}, then {last}")
    print(f"the machine used {grown:+.0f} MB")
    pool.close()


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--memory", type=int, default=0)
    options = parser.parse_args()
    if options.memory:
        memory(options.memory)
        return
    for num_tests in (1, 10):
        speed(options.rows, num_tests, options.turns)


if __name__ == "__main__":
    main()
