"""What Prefect, the journal and the store add: to a stage, to a fully reused run, to 100,000 rollouts.

    python benchmarks/overhead.py

Prints one table. Times are wall seconds of this machine, medians of interleaved repeats where a thing is repeated.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
NUM_STAGES = 20
NUM_ROLLOUTS = 100_000
ROWS: list[tuple[str, str]] = []

STAGES = """
import json, sys, time
from pathlib import Path
from flows.environment import prepare
from tasks.settings import Home
home = Home.from_environment()
prepare(home)
from prefect import flow
import pyarrow as pa
from flows.session import RunSpec, open_session
from tasks.config import CurateConfig, SampleConfig

@flow(name="overhead")
def measure(count: int) -> list[float]:
    seconds = []
    with open_session(RunSpec(name="overhead", verb="overhead"), track=True) as session:
        rows = {"problem_id": [str(i) for i in range(64)], "question": ["?"] * 64}
        problems = session.store.put("problems", pa.table(rows))
        for index in range(count):
            config = CurateConfig(sample=SampleConfig(n=index + 1))
            started = time.perf_counter()
            outcome = session.stage("curate", config, {"problems": [problems]}, round=index)
            seconds.append(time.perf_counter() - started)
    return seconds

print(json.dumps(measure(int(sys.argv[1]))))
"""

WRITE = """
import json, sys, time
from pathlib import Path
import numpy as np, pyarrow as pa
from data.manifest import Manifest
from data.schema import ROLLOUTS
from data.store import Ref, Store
store, total, shard = Store(Path(sys.argv[1])), int(sys.argv[2]), 5_000
ref = Ref("rollouts", "0" * 32)
rng = np.random.default_rng(0)
started = time.perf_counter()
writer = store.writer(ref)
for index, first in enumerate(range(0, total, shard)):
    lengths = rng.integers(20, 80, shard)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    tokens = pa.array(rng.integers(0, 30_000, offsets[-1]), pa.int32())
    logprobs = pa.array(-rng.exponential(1.0, offsets[-1]), pa.float32())
    ids = [f"p{i // 8}@r0h0:{i % 8}" for i in range(first, first + shard)]
    writer.write_table(pa.table({
        "rollout_id": ids, "problem_id": [i.split("@")[0] for i in ids], "completion": ["12+5=17 #### 17"] * shard,
        "completion_tokens": pa.ListArray.from_arrays(offsets, tokens),
        "logprobs": pa.ListArray.from_arrays(offsets, logprobs),
    }), index)
writer.commit(Manifest(table="rollouts", digest=ref.digest, schema_version=1))
wrote = time.perf_counter() - started
started = time.perf_counter()
rows = Store(Path(sys.argv[1])).read(ref).num_rows
print(json.dumps([wrote, time.perf_counter() - started, rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))
"""


def run(code: str, *arguments: str, home: Path) -> str:
    environment = {**os.environ, "GRADUS_HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, cwd=home, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1]


def stage_overhead(home: Path) -> None:
    seconds = json.loads(run(STAGES, str(NUM_STAGES), home=home))
    ROWS.append(("a light stage: Prefect task, journal, store (median)", f"{statistics.median(seconds):.3f} s"))
    ROWS.append(("the same, slowest of " + str(NUM_STAGES), f"{max(seconds):.3f} s"))


def reused_run(home: Path) -> None:
    recipe = ROOT / "tests" / "e2e" / "tiny.toml"
    command = [sys.executable, "-m", "flows.cli", "train", str(recipe), "--json"]
    environment = {**os.environ, "GRADUS_HOME": str(home), "PYTHONPATH": str(ROOT)}
    for label in ("a one-round run, computed", "the same, fully reused (cold process)"):
        started = time.perf_counter()
        subprocess.run(command, env=environment, cwd=home, capture_output=True, check=True)
        ROWS.append((label, f"{time.perf_counter() - started:.1f} s"))


def rollouts(home: Path) -> None:
    wrote, read, rows, peak_kib = json.loads(run(WRITE, str(home / "bench"), str(NUM_ROLLOUTS), home=home))
    ROWS.append((f"{rows:,} rollouts written", f"{rows / wrote:,.0f} rows/s"))
    ROWS.append(("read back, verified", f"{rows / read:,.0f} rows/s"))
    ROWS.append(("peak memory of both", f"{peak_kib / 1024:,.0f} MiB"))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        stage_overhead(home)
        reused_run(home)
        rollouts(home)
    width = max(len(label) for label, _ in ROWS)
    for label, value in ROWS:
        print(f"{label:<{width}}  {value:>14}")


if __name__ == "__main__":
    main()
