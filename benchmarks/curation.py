"""Time and memory of curation: score rows to difficulty, filter and sampler, compared with pandas and polars.

    python benchmarks/curation.py                             # 10,000,000 rows over 500,000 problems
    python benchmarks/curation.py --rows 200000 --problems 10000 --turns 2
    python benchmarks/curation.py --rows 100000000 --only gradus --turns 1

Writes scores (id, problem, reward, verdict; no texts, no tokens) and problems through the store. Then each program does
the same in a process of its own, in turn after turn, one program after the other:

- count judged and right rollouts of each problem, mean and variance of its rewards;
- drop problems that are all right or all wrong, and those without a row;
- draw 1,024 of the rest without replacement, in proportion to p (1 - p).

gradus runs its stages `difficulty` and `curate`, which also verify the digests of what they read, keep histories and
posteriors, give each problem a reason, and write their tables; "functions" are the same functions of `gradus.data` on
the columns, without digests, reports and files. pandas and polars read of the same Parquet files the columns
that the task needs, and write nothing. Peak memory is that of the whole process, imports included (Linux); seconds are
without imports. The number of problems left must be the same for all.
"""
# ruff: noqa: PLC0415 - a process imports what it measures, so that memory and seconds are those of one program

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from common import environment, peak_bytes, ratio

from gradus.data.lake.store import Ref, Store

SCORES, PROBLEMS = Ref("scores", "a" * 32), Ref("problems", "b" * 32)
SHARD = 1_000_000
DRAW = 1024
LIMIT = 2e9
"""Bytes of memory that gradus should need at most."""
MEMORY_GB = 1.0
"""GRADUS_MEMORY_GB of both programs of gradus: the memory of DuckDB, beside which problems have their own."""


def main() -> None:
    """Write the rows, run every program in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--problems", type=int, default=500_000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=tuple(PROGRAMS), help="programs to run")
    parser.add_argument("--folder", type=Path, help="where the rows are written, and kept; needs disk for all of them")
    parser.add_argument("--memory-gb", type=float, default=MEMORY_GB, help="memory of DuckDB")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure[0], Path(options.measure[1]))))
        return
    there = [name for name in PROGRAMS if name in ("gradus", "functions") or importlib.util.find_spec(name)]
    chosen = [name for name in there if options.only is None or name in options.only]
    if absent := [name for name in options.only or PROGRAMS if name not in there]:
        print(f"not installed: {', '.join(absent)}")
    if not chosen:
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        start = time.perf_counter()
        write(folder, options.rows, options.problems)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{options.rows:,} score rows of {options.problems:,} problems: {size / 1e6:,.0f} MB on the disk, "
              f"written in {time.perf_counter() - start:.0f} s")  # fmt: skip
        report(options.rows, turns(folder, chosen, options.turns, options.memory_gb))


def turns(folder: Path, chosen: list[str], num_turns: int, memory_gb: float) -> dict[str, list[dict[str, Any]]]:
    """Return what each program measured of itself, turn by turn; raise ValueError if their results differ."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in chosen}
    limited = environment(folder, GRADUS_MEMORY_GB=f"{memory_gb:g}")
    for _ in range(num_turns):
        for name in chosen:
            command = [sys.executable, __file__, "--measure", name, str(folder)]
            found[name].append(json.loads(subprocess.check_output(command, env=limited)))
    results = {(each["left"], each["drawn"]) for rows in found.values() for each in rows}
    if len(results) > 1:
        raise ValueError(f"the programs do not do the same: problems left and drawn are {sorted(results)}")
    return found


def report(num_rows: int, found: dict[str, list[dict[str, Any]]]) -> None:
    """Print medians, and how many times as long others took, round by round."""
    first = next(iter(found))
    own = [each["seconds"] for each in found[first]]
    print(
        f"{'':12}{'seconds':>10}{'CPU s':>10}{'rows/s':>14}{'peak MB':>10}   times as long as {first} (least to most)"
    )
    for name, rows in found.items():
        seconds, cpu_s = (statistics.median(each[unit] for each in rows) for unit in ("seconds", "cpu_s"))
        peak = max(each["peak_bytes"] for each in rows)
        beside = "" if name == first else ratio(own, [each["seconds"] for each in rows])
        print(f"{name:12}{seconds:>10.2f}{cpu_s:>10.2f}{num_rows / seconds:>14,.0f}{peak / 1e6:>10,.0f}   {beside}")
        if name in ("gradus", "functions") and peak > LIMIT:
            print(f"{name} needed more than {LIMIT / 1e9:g} GB")
    each = found[first][0]
    print(f"{each['left']:,} problems left, {each['drawn']:,} drawn")


def write(folder: Path, num_rows: int, num_problems: int) -> None:
    """Write problems and scores; pass rates of problems are Beta(0.5, 0.8), rows in no order."""
    store, rng = Store(folder), np.random.default_rng(0)
    rate = rng.beta(0.5, 0.8, num_problems)
    ids = pa.array([f"p{number:07}" for number in range(num_problems)])
    problems = store.writer(PROBLEMS)
    problems.write_table(pa.table({"problem_id": ids, "question": ids, "answer": ids}), 0)
    problems.commit()
    scores = store.writer(SCORES)
    for shard, begin in enumerate(range(0, num_rows, SHARD)):
        num = min(SHARD, num_rows - begin)
        problem = rng.integers(0, num_problems, num)
        right = rng.random(num) < rate[problem]
        table = {
            "rollout_id": pa.array(np.arange(begin, begin + num)).cast(pa.string()),
            "problem_id": ids.take(pa.array(problem)),
            "reward": right.astype(np.float64),
            "correct": right,
        }
        scores.write_table(pa.table(table), shard)
    scores.commit()


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Return seconds, wall and CPU, and peak memory of one program, and how many problems it left and drew."""
    act = PROGRAMS[name](folder)
    start, computed = time.perf_counter(), time.process_time()
    left, drawn = act()
    times = {"seconds": time.perf_counter() - start, "cpu_s": time.process_time() - computed}
    return {**times, "peak_bytes": peak_bytes(), "left": left, "drawn": drawn}


Act = Callable[[], tuple[int, int]]


def of_gradus(folder: Path) -> Act:
    """The stages `difficulty` and `curate`, from a store that has verified nothing yet."""
    from gradus.tasks.config.curation import CurateConfig, DifficultyConfig
    from gradus.tasks.host.processes import Warm
    from gradus.tasks.stages import curate, difficulty
    from gradus.tasks.stages.context import StageContext

    filters = [{"name": "zero_variance", "unmeasured": "drop"}]
    sampler = {"name": "variance", "explore_frac": 0.0}
    config = CurateConfig.model_validate({"filters": filters, "sampler": sampler, "draw": DRAW})

    def act() -> tuple[int, int]:
        store = Store(folder)
        measured = store.writer(Ref("difficulty", f"{time.time_ns():032x}"))
        difficulty.run(StageContext(store, {"scores": (SCORES,)}, measured, 0, Warm(), unheard), DifficultyConfig())
        measured.commit()
        plan = store.writer(Ref("plan", f"{time.time_ns():032x}"))
        inputs = {"problems": (PROBLEMS,), "difficulty": (measured.ref,)}
        found = curate.run(StageContext(store, inputs, plan, 0, Warm(), unheard), config)
        plan.commit()
        summary: dict[str, Any] = dict(found.summary)
        return round(found.metrics["data/kept_frac"] * (summary["kept"] + summary["dropped"])), summary["kept"]

    return act


def of_functions(folder: Path) -> Act:
    """The functions of the stages on files that are read without a store."""
    import pyarrow.parquet as pq

    from gradus.data.curation.candidates import candidates
    from gradus.data.curation.difficulty import add, measure
    from gradus.data.curation.filters.difficulty import zero_variance
    from gradus.data.curation.results import apply_filters
    from gradus.data.curation.samplers.draws import variance
    from gradus.data.lake.memory_limit import MemoryLimit
    from gradus.data.lake.tally import Tally
    from gradus.tasks.config.settings import memory_bytes

    def act() -> tuple[int, int]:
        with MemoryLimit(memory_bytes(), folder).database() as database:
            measured = measure(Tally(database, sorted((folder / str(SCORES)).glob("part-*.parquet"))))
        table = add(measured, None, round_index=0)
        pool = candidates(pq.read_table(folder / str(PROBLEMS), columns=["problem_id"]), table)
        kept = apply_filters(pool, [lambda rows: zero_variance(rows, unmeasured="drop")]).kept
        draw = variance(pool.select(np.flatnonzero(kept)), DRAW, np.random.default_rng(0), explore_frac=0.0)
        return int(kept.sum()), len(draw.index)

    return act


def of_pandas(folder: Path) -> Act:
    """A data frame grouped by problem, as one writes it."""
    import pandas as pd

    def act() -> tuple[int, int]:
        scores = pd.read_parquet(folder / str(SCORES), columns=["problem_id", "reward", "correct"])
        groups = scores.groupby("problem_id", sort=False)
        table = groups.agg(n=("correct", "count"), k=("correct", "sum"), mean=("reward", "mean"), var=("reward", "var"))
        problems = pd.read_parquet(folder / str(PROBLEMS), columns=["problem_id"])
        pool = problems.merge(table, left_on="problem_id", right_index=True, how="left")
        rate = pool["k"] / pool["n"]
        pool = pool.assign(variance=rate * (1 - rate))
        left = pool[(pool["k"] > 0) & (pool["k"] < pool["n"])]
        drawn = left.sample(min(DRAW, len(left)), weights="variance", random_state=0)
        return len(left), len(drawn)

    return act


def of_polars(folder: Path) -> Act:
    """A lazy frame grouped by problem, and exponential waiting times for the draw."""
    import polars as pl  # pyright: ignore[reportMissingImports] - no dependency; used if it is there

    def act() -> tuple[int, int]:
        scores: Any = pl.scan_parquet(folder / str(SCORES) / "*.parquet")
        reward, correct = pl.col("reward"), pl.col("correct")
        table = scores.group_by("problem_id").agg(
            n=correct.count(), k=correct.sum(), mean=reward.mean(), var=reward.var()
        )
        problems = pl.scan_parquet(folder / str(PROBLEMS) / "*.parquet").select("problem_id")
        rate = pl.col("k") / pl.col("n")
        pool = problems.join(table, on="problem_id", how="left").with_columns(variance=rate * (1 - rate))
        left = pool.filter((pl.col("k") > 0) & (pl.col("k") < pl.col("n"))).collect()
        wait = np.random.default_rng(0).standard_exponential(left.height) / left["variance"].to_numpy()
        drawn = left[np.argsort(wait)[:DRAW]]
        return left.height, drawn.height

    return act


PROGRAMS: dict[str, Callable[[Path], Act]] = {
    "gradus": of_gradus,
    "functions": of_functions,
    "pandas": of_pandas,
    "polars": of_polars,
}


def unheard(frac: float, text: str = "") -> None:
    """A heart-beat that nobody listens to."""


if __name__ == "__main__":
    main()
