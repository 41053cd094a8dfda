"""Verdicts a second of rewards, with one and two judges, beside Math-Verify in a plain loop; hangs; memory.

    python benchmarks/rewards.py                        # GSM8K's golds if ../shared/data is there, else made ones
    python benchmarks/rewards.py --rows 200000 --memory

Turns are interleaved. Each pool is warm: its judges have started. `math` is compared with `parse` and `verify` of
Math-Verify in this process, without time limits. A batch of 1,000 rows, ten of which hang, must end within its limits
with all others judged. `--memory` judges the rows in one call and prints the memory of a judge before and after.
"""

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import psutil  # noqa: E402 - the checkout comes first
from common import print_rates  # noqa: E402

from gradus.models.judging.pool import JudgePool  # noqa: E402
from gradus.models.rewards import resolve  # noqa: E402

GSM8K = ROOT.parent / "shared" / "data" / "gsm8k" / "test.jsonl"
HANGS = """import time

def judge(rows):
    for row in rows:
        if row["completion"] == "hang":
            time.sleep(3600)
    return [1.0 for _ in rows]
"""
Row = Mapping[str, Any]


def numbers(num_rows: int) -> list[Row]:
    """Worked solutions, every second with another answer."""
    texts = [json.loads(line)["answer"] for line in GSM8K.read_text().splitlines()] if GSM8K.exists() else ["#### 12"]
    rows = list[Row]()
    for at in range(num_rows):
        work, _, gold = texts[at // 2 % len(texts)].rpartition("#### ")
        said = gold if at % 2 else str(at)
        rows.append({"completion": f"{work}The answer is \\boxed{{{said}}}", "answer": gold.replace(",", "")})
    return rows


def others(num_rows: int) -> dict[str, list[Row]]:
    """Rows of rewards that read no number."""
    call = json.dumps([{"name": "weather", "arguments": {"city": "New York", "days": 3}}])
    return {
        "choice": [{"completion": f"So the answer is ({'ABCD'[at % 4]})", "answer": "B"} for at in range(num_rows)],
        "json_record": [
            {"completion": json.dumps({"a": at, "b": "x"}), "answer": '{"a": 3, "b": "x"}'} for at in range(num_rows)
        ],
        "tool_calls": [{"completion": call, "answer": call} for _ in range(num_rows)],
        "rouge_l": [{"completion": "the cat sat on the mat " * 20, "answer": "a cat is on a mat " * 20}] * num_rows,
    }


def pooled(name: str, rows: Sequence[Row], num_workers: int) -> tuple[Callable[[], float], JudgePool]:
    """Return an act that judges the rows by a warm pool and returns the share of right ones, and the pool."""
    pool = JudgePool(resolve(name, {}, max_chars=50_000), num_workers=num_workers)
    pool.judge(rows[: 64 * num_workers])

    def act() -> float:
        found = [judged.verdict for judged in pool.judge(rows)]
        assert all(verdict.value is not None for verdict in found), name
        return sum(verdict.value or 0.0 for verdict in found) / len(found)

    return act, pool


def plain_math(rows: Sequence[Row]) -> Callable[[], float]:
    """Math-Verify in a loop of this process."""
    from math_verify import parse, verify  # noqa: PLC0415 - slow to import

    def act() -> float:
        right = 0
        for row in rows:
            gold, said = (parse(text, parsing_timeout=0) for text in (f"${row['answer']}$", row["completion"]))
            right += verify(gold, said, timeout_seconds=0)
        return right / len(rows)

    return act


def speed(num_rows: int, turns: int) -> None:
    """Print rows a second: median of the turns."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that there is no limit of time
    rows, more = numbers(num_rows), others(num_rows)
    acts: dict[str, tuple[Callable[[], float], JudgePool | None]] = {
        "Math-Verify, plain loop": (plain_math(rows), None)
    }
    for name, given in {"math": rows, "numeric": rows, **more}.items():
        for num_workers in (1, 2):
            acts[f"{name}, {num_workers} judges"] = pooled(name, given, num_workers)
    print(f"{num_rows:,} rows, {turns} turns")
    print_rates({name: act for name, (act, _) in acts.items()}, num_rows, turns, "rows/s")
    for _, pool in acts.values():
        if pool is not None:
            pool.close()


def hangs(folder: Path, limit_s: float) -> None:
    """Judge 1,000 rows of which ten hang, by a function of a user's."""
    file = folder / "hangs.py"
    file.write_text(HANGS)
    completions = ["hang" if at % 100 == 50 else "fine" for at in range(1000)]
    with JudgePool(resolve(f"{file}:judge", {}), num_workers=2, item_timeout_s=limit_s) as pool:
        started = time.perf_counter()
        verdicts = [
            judged.verdict for judged in pool.judge([{"completion": text, "answer": ""} for text in completions])
        ]
    taken = time.perf_counter() - started
    right = sum(verdict.value == 1.0 for text, verdict in zip(completions, verdicts, strict=True) if text == "fine")
    late = sum(verdict.outcome == "timeout" for verdict in verdicts)
    print(f"1,000 rows, ten hang, {limit_s:g} s a row: {taken:.1f} s, {right} of 990 judged, {late} timed out")


def memory(num_rows: int) -> None:
    """Print the memory of a judge at first and after many rows."""
    for name in ("numeric", "math"):
        rows = numbers(min(num_rows, 20_000 if name == "math" else num_rows))
        act, pool = pooled(name, rows, 1)
        (judge,) = [psutil.Process(pid) for pid in pool.pids]
        before = judge.memory_info().rss
        act()
        after = judge.memory_info().rss
        print(f"{name}: {len(rows):,} rows in one call, its judge {before / 1e6:.0f} MB, then {after / 1e6:.0f} MB")
        pool.close()


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    if options.memory:
        memory(options.rows)
        return
    speed(options.rows, options.turns)
    with tempfile.TemporaryDirectory() as folder:
        hangs(Path(folder), 1.0)


if __name__ == "__main__":
    main()
