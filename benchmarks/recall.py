"""Cost of a wave that takes up stored rollouts again: seconds, peak memory and bytes read beside a million of them.

    python benchmarks/recall.py                            # 1,000,000 stored rollouts of 200 tokens, 32 groups of 8
    python benchmarks/recall.py --rollouts 100000 --turns 5

Writes an earlier round through the store, then runs the stage `wave` with `replay`, and the lookup of a rollout stage
of the rows that it planned, each turn in a process of its own. "Read" are bytes as the system counts them, the ends of
all files among them, without those of mapped files. The wave reads no texts and no tokens; the lookup maps files, and
decodes the texts and tokens of those shards alone (512 rows, the recipe's default) that hold a row taken. Verifying an
artifact's digests, once a process, reads each file whole; it is apart.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import environment, peak_bytes

from gradus.data.lake.store import Ref, Store
from gradus.data.records import Json
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.rollout.parents import parents_of
from gradus.tasks.stages.wave import run

T = TypeVar("T")
GROUP, SHARD = 8, 512
ROLLOUTS, SCORES = Ref("rollouts", "a" * 32), Ref("scores", "a" * 32)
WIDE = ("completion", "prompt_tokens", "completion_tokens", "logprobs")


def main() -> None:
    """Write the stored round, measure in processes of their own, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--groups", type=int, default=32, help="groups that the wave takes up")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(options.measure, options.groups)))
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.rollouts, options.tokens)
        sizes = column_bytes(Store(Path(folder)))
        command = [sys.executable, __file__, "--groups", str(options.groups), "--measure", folder]
        own = environment(Path(folder))
        turns = [json.loads(subprocess.check_output(command, env=own)) for _ in range(options.turns)]
        middle = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
        wide = sum(sizes[name] for name in WIDE)
        whole = sum(sizes.values()) / 1e6
        print(f"{options.rollouts:,} stored rollouts, {whole:,.0f} MB, texts and tokens {wide / 1e6:,.0f} MB")
        print(f"{'':30}{'seconds':>10}{'MB read':>18}{'peak MB more':>14}")
        for part in ("verify", "wave", "lookup"):
            print(
                f"{part:30}{middle[f'{part}_s']:>10.2f}{middle[f'{part}_bytes'] / 1e6:>18,.1f}"
                f"{middle[f'{part}_peak_bytes'] / 1e6:>14,.0f}"
            )
        print(f"planned rows: {middle['rows']:.0f}; found: {middle['found']:.0f}")


def write(folder: Path, num_rollouts: int, num_tokens: int) -> None:
    """Write a policy's name, problems, and a round of rollouts with scores."""
    store, rng = Store(folder), np.random.default_rng(0)
    policy = store.adopt_files({"config.json": b"1"}, {})
    rollouts, scores = store.writer(ROLLOUTS), store.writer(SCORES)
    for shard, first in enumerate(range(0, num_rollouts, SHARD)):
        numbers = range(first, min(first + SHARD, num_rollouts))
        ids = [f"{'a' * 16}:p{i // GROUP}@r1h0:{i % GROUP}" for i in numbers]
        problems = [f"p{i // GROUP}" for i in numbers]
        offsets = pa.array(np.arange(len(ids) + 1, dtype=np.int32) * num_tokens)
        tokens = pa.array(rng.integers(0, 50_000, len(ids) * num_tokens), pa.int32())
        logprobs = pa.array(-rng.random(len(tokens)), pa.float32())
        completion = pa.ListArray.from_arrays(offsets, tokens)
        letters = rng.integers(97, 123, (len(ids), num_tokens), np.uint8)
        rollouts.write_table(
            pa.table(
                {
                    "rollout_id": ids,
                    "problem_id": problems,
                    "group_id": [f"{p}@r1h0" for p in problems],
                    "round": pa.array([1] * len(ids), pa.int32()),
                    "completion": [row.tobytes().decode() for row in letters],
                    "prompt_tokens": completion,
                    "completion_tokens": completion,
                    "logprobs": pa.ListArray.from_arrays(offsets, logprobs),
                    "policy": [policy.digest] * len(ids),
                    "finish_reason": ["stop"] * len(ids),
                }
            ),
            shard,
        )
        reward = rng.random(len(ids)).round()
        scores.write_table(
            pa.table({"rollout_id": ids, "problem_id": problems, "reward": reward, "correct": reward > 0}), shard
        )
    rollouts.commit()
    scores.commit()
    (folder / "policy").write_text(policy.digest)


def column_bytes(store: Store) -> dict[str, int]:
    """Return the compressed bytes of each column of the stored rollouts."""
    sizes = dict[str, int]()
    for file in store.files(ROLLOUTS):
        whole = pq.read_metadata(file)
        for group in range(whole.num_row_groups):
            for each in (whole.row_group(group).column(i) for i in range(whole.num_columns)):
                name = each.path_in_schema.partition(".")[0]
                sizes[name] = sizes.get(name, 0) + each.total_compressed_size
    return sizes


def measured(folder: Path, groups: int) -> dict[str, float]:
    """Return seconds, bytes and memory of verifying, of the wave, and of finding the rows that it planned."""
    store = Store(folder)
    policy = Ref("checkpoints", (folder / "policy").read_text())
    own = {"rollout_id": ["x:p0@r2h0:0"], "problem_id": ["p0"], "group_id": ["p0@r2h0"], "completion": ["1"]}
    tables = {
        "problems": pa.table({"problem_id": [f"p{i}" for i in range(1000)], "question": ["1?"] * 1000}),
        "plan": pa.table({"problem_id": ["p0"], "n": [1], "group_id": ["p0@r2h0"]}),
        "rollouts": pa.table(own),
        "scores": pa.table({**{key: own[key] for key in ("rollout_id", "problem_id")}, "reward": [0.0]}),
    }
    inputs = {role: (store.put(role, table),) for role, table in tables.items()}
    inputs |= {"stored_rollouts": (ROLLOUTS,), "stored_scores": (SCORES,), "sampler": (policy,), "parents": (ROLLOUTS,)}
    found = dict[str, float]()

    def timed(part: str, act: Callable[[], T]) -> T:
        before, start, memory = read_bytes(), time.perf_counter(), peak_bytes(anew=True)
        made = act()
        found[f"{part}_s"] = time.perf_counter() - start
        found[f"{part}_bytes"], found[f"{part}_peak_bytes"] = read_bytes() - before, peak_bytes() - memory
        return made

    timed("verify", lambda: (store.files(ROLLOUTS), store.files(SCORES)))
    writer = store.writer(Ref("plan", f"{time.time_ns():032x}"))
    sample = SampleConfig(n=1, temperature=1.0, max_tokens=8).model_dump()
    wave = {"name": "replay", "groups": groups}
    config = PlanningConfig.model_validate(
        {"wave": wave, "sample": sample, "curate": CurateConfig().model_dump(), "max_age": 1}
    )
    facts: dict[str, Json] = {"round": 2, "wave": 1, "call": 0}
    ctx = StageContext(store, inputs, writer, 0, Warm(), unheard, facts)
    timed("wave", lambda: run(ctx, config))
    writer.commit()
    plan = store.read(writer.ref)
    parents = timed("lookup", lambda: parents_of(ctx, plan, None))
    return {**found, "rows": plan.num_rows, "found": parents.rows.num_rows}


def unheard(frac: float, text: str = "") -> None:
    """A heart-beat that nobody listens to."""


def read_bytes() -> int:
    """Return the bytes that this process has read, from caches too (Linux)."""
    line = next(line for line in Path("/proc/self/io").read_text().splitlines() if line.startswith("rchar"))
    return int(line.split()[1])


if __name__ == "__main__":
    main()
