"""Overhead of Prefect, MLflow, journal and store: on a stage, on a round and a reused run of the demo, on rollouts.

    python benchmarks/overhead.py              # everything: runs the whole demo and rounds of four waves (minutes)
    python benchmarks/overhead.py --no-demo

Prints one table. Both servers run for real on loopback. Times are wall seconds, medians of repeated ones.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from common import environment

from gradus.tasks.host.home_folder import secret
from gradus.tasks.runs.journal import read_events
from gradus.tasks.servers.home_servers import start_servers
from gradus.tasks.tracking.sending import ensure_database

NUM_STAGES = 20
NUM_ROLLOUTS = 100_000
WAVES = 'waves=[{name="refill",then="learn"},{name="rethink",frac=0.1},{name="branch",n=1},"xrpo"]'
ROWS: list[tuple[str, str]] = []

STAGES = """
import json, sys, time
from gradus.flows.environment import prepare
from gradus.tasks.config.settings import Home
prepare(Home.from_environment())
from prefect import flow
import pyarrow as pa
from gradus.flows.session import RunSpec, open_session
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.runtime.calls import Call

@flow(name="overhead")
def measure(count: int) -> list[float]:
    seconds = []
    with open_session(RunSpec(name="overhead", verb="overhead")) as session:
        rows = {"problem_id": [str(i) for i in range(64)], "question": ["?"] * 64}
        problems = session.store.put("problems", pa.table(rows))
        for index in range(count):
            config = CurateConfig(sample=SampleConfig(n=index + 1))
            started = time.perf_counter()
            outcome = session.stage(Call("curate", config, {"problems": [problems]}, round=index))
            seconds.append(time.perf_counter() - started - outcome.report["metrics"]["perf/compute_s"])
    return seconds

print(json.dumps(measure(int(sys.argv[1]))))
"""

ROLLOUTS = """
import json, resource, sys, time
from pathlib import Path
import numpy as np, pyarrow as pa
from gradus.data.lake.store import Ref, Store
store, total, shard = Store(Path(sys.argv[1])), int(sys.argv[2]), 5_000
ref = Ref("rollouts", "0" * 32)
rng = np.random.default_rng(0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
wrote_s = 0.0
writer = store.writer(ref)
for index, first in enumerate(range(0, total, shard)):
    lengths = rng.integers(100, 400, shard)
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    tokens = pa.array(rng.integers(0, 30_000, offsets[-1]), pa.int32())
    logprobs = pa.array(-rng.exponential(1.0, offsets[-1]), pa.float32())
    ids = [f"p{i // 8}@r0h0:{i % 8}" for i in range(first, first + shard)]
    table = pa.table({
        "rollout_id": ids, "problem_id": [i.split("@")[0] for i in ids], "completion": ["12+5=17 #### 17"] * shard,
        "completion_tokens": pa.ListArray.from_arrays(offsets, tokens),
        "logprobs": pa.ListArray.from_arrays(offsets, logprobs),
    })
    started = time.perf_counter()
    writer.write_table(table, index)
    wrote_s += time.perf_counter() - started
started = time.perf_counter()
writer.commit()
wrote_s += time.perf_counter() - started
written = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
started = time.perf_counter()
table = Store(Path(sys.argv[1])).read(ref)
print(json.dumps([wrote_s, time.perf_counter() - started, table.num_rows, before, written, table.nbytes]))
"""


def run(code: str, *arguments: str, home: Path, **extra: str) -> list[float]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env=environment(home, **extra), cwd=home, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def stage_overhead(home: Path) -> None:
    with start_servers(home, 4400, 5400) as servers:
        extra = {"PREFECT_API_URL": f"{servers.prefect_url}/api", "PREFECT_API_AUTH_STRING": secret(home)}
        extra["MLFLOW_TRACKING_URI"] = servers.mlflow_url
        seconds = run(STAGES, str(NUM_STAGES), home=home, **extra)
    ROWS.append(("a stage, less its own computing: median, servers running", f"{statistics.median(seconds):.3f} s"))
    ROWS.append((f"the same, slowest of {NUM_STAGES}", f"{max(seconds):.3f} s"))


def demo(home: Path) -> None:
    command = [sys.executable, "-m", "gradus", "demo", "--json"]
    for label in ("the demo, computed", "the demo again, all reused: a cold command"):
        started = time.perf_counter()
        done = subprocess.run(command, env=environment(home), cwd=home, stdout=subprocess.PIPE, check=True)
        ROWS.append((label, f"{time.perf_counter() - started:.1f} s"))
        if "again" not in label:
            seconds = [spent for spent, _ in machinery(home / "runs" / json.loads(done.stdout)["run"])]
            ROWS.append(
                ("a round of the demo, less its stages' computing: median", f"{statistics.median(seconds):.2f} s")
            )
            ROWS.append((f"the same, slowest of {len(seconds)}", f"{max(seconds):.2f} s"))


def waves(home: Path) -> None:
    """Rounds of the demo with four waves after its escalation."""
    command = [sys.executable, "-m", "gradus", "train", "demo", "--run", "waves", "--set", "rounds=3", "--set", WAVES]
    subprocess.run([*command, "--json"], env=environment(home), cwd=home, stdout=subprocess.DEVNULL, check=True)
    rounds = machinery(home / "runs" / "waves")
    listed = ", ".join(str(num_stages) for _, num_stages in rounds)
    a_stage = statistics.median(spent / num_stages for spent, num_stages in rounds)
    ROWS.append((f"a stage in rounds of four waves ({listed} stages): median", f"{a_stage:.3f} s"))


def machinery(folder: Path) -> list[tuple[float, int]]:
    """Seconds of each training round that no stage computed in, and its stages; profile and evaluations left out."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    computed: dict[int, float] = {}
    names = {}
    for event in read_events(folder):
        if event["event"] == "stage_started" and event["purpose"] not in ("eval", "profile"):
            names[event["attempt"]] = event["round"]
            begun.setdefault(event["round"], event["time"])
        elif event["event"] == "stage_finished" and event["attempt"] in names:
            index = names[event["attempt"]]
            ended[index] = event["time"]
            computed[index] = computed.get(index, 0.0) + event.get("clock", {}).get("perf/compute_s", 0.0)
    num_stages = Counter(names.values())
    return [(ended[index] - begun[index] - computed[index], num_stages[index]) for index in begun if index > 0]


def rollouts(home: Path) -> None:
    wrote_s, read_s, rows, before_kib, written_kib, num_bytes = run(
        ROLLOUTS, str(home / "bench"), str(NUM_ROLLOUTS), home=home
    )
    ROWS.append((f"{rows:,} rollouts ({num_bytes / 2**20:,.0f} MiB) written", f"{rows / wrote_s:,.0f} rows/s"))
    ROWS.append(("read back into memory, verified", f"{rows / read_s:,.0f} rows/s"))
    ROWS.append(("peak memory added by writing", f"{(written_kib - before_kib) / 1024:,.0f} MiB"))


def main() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:  # a reporter may still be writing
        home = Path(scratch)
        ensure_database(home)
        stage_overhead(home)
        rollouts(home)
        if "--no-demo" not in sys.argv:
            demo(home)
            waves(home)
    width = max(len(label) for label, _ in ROWS)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    for label, value in ROWS:
        print(f"{label:<{width}}  {value:>14}")


if __name__ == "__main__":
    main()
