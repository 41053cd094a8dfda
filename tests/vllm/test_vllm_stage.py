"""Stage rollout with a real vLLM: exactly once through the death of the worker, of the engine core and of the flow."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradus.data.errors import StageError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.runtime.attempt import Job
from gradus.tasks.runtime.supervise import Limits, WorkerPool

ROOT = Path(__file__).parents[2]
LIMITS = Limits(wall_s=280, silence_s=280, start_s=120)
NUM_GROUPS, NUM_SAMPLES = 6, 4
IDS = [f"p{group}@r0h0:{sample}" for group in range(NUM_GROUPS) for sample in range(NUM_SAMPLES)]
QUIET = {"flush_s": 0.0, "shard_rows": 12, "vllm": {"enforce_eager": True, "max_num_seqs": 4}}


def problems() -> pa.Table:
    names = [f"p{i}" for i in range(NUM_GROUPS)]
    questions = [f"{i} + {i + 1} =" for i in range(NUM_GROUPS)]
    return pa.table({"problem_id": names, "question": questions, "answer": ["1"] * NUM_GROUPS})


def plan() -> pa.Table:
    names = [f"p{i}" for i in range(NUM_GROUPS)]
    columns = {"problem_id": names, "group_id": [f"{name}@r0h0" for name in names]}
    sizes = pa.array([NUM_SAMPLES] * NUM_GROUPS, pa.int32())
    return pa.table({**columns, "n": sizes, "max_tokens": pa.array([60] * NUM_GROUPS, pa.int32())})


@pytest.fixture
def job(store: Store, policies: list[Ref]) -> Callable[[str], dict[str, Any]]:
    inputs = {"plan": [str(store.put("plan", plan()))], "problems": [str(store.put("problems", problems()))]}
    inputs["policy"] = [str(policies[0])]

    def make(digit: str) -> dict[str, Any]:
        config = {"engine": "vllm", **QUIET}
        return Job("rollout", str(store.root), f"rollouts/{digit * 32}", inputs, config, seed=5).to_json()

    return make


def run(pool: WorkerPool, job: dict[str, Any]) -> dict[str, Any]:
    return pool.run("engine", job, LIMITS, lambda _frac, _text: None)


def all_gone(processes: list[psutil.Process], within_s: float = 10) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [process for process in alive if lives(process)]


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_killed_worker_leaves_its_rows_and_no_process(
    store: Store, job: Callable[[str], dict[str, Any]], tmp_path: Path
) -> None:
    path = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    others, seen = {p.pid for p in psutil.Process().children(recursive=True)}, list[psutil.Process]()

    def look(_frac: float, _text: str) -> None:
        seen[:] = [p for p in psutil.Process().children(recursive=True) if p.pid not in others]

    with (
        WorkerPool(tmp_path, {**path, "GRADUS_FAULT": "rollout:after_row#17"}) as pool,
        pytest.raises(StageError, match="killed by SIGKILL"),
    ):
        pool.run("engine", job("a"), LIMITS, look)
    assert all_gone([p for p in seen if p.is_running()])
    folder = store.path(Ref.parse(job("a")["output"]))
    kept = pq.read_table(folder / "part-00000.parquet").num_rows
    kept += sum(pq.read_table(f).num_rows for f in folder.glob(".scratch/open-00001-*.parquet"))
    assert kept == 17
    with WorkerPool(tmp_path, path) as pool:
        report = run(pool, job("a"))
        rows = store.read(Ref.parse(job("a")["output"])).to_pylist()
        # The same worker loses its engine core: an error (test_vllm_engine.py loads another).
        look(1.0, "")
        for process in seen:
            if lives(process) and "EngineCore" in " ".join(process.cmdline()):
                process.kill()
        with pytest.raises(StageError, match="engine core ended"):
            run(pool, job("b"))
    assert [row["rollout_id"] for row in rows] == [f"{'a' * 16}:{name}" for name in IDS]
    assert report["summary"]["shards_reused"] == 1
    assert report["summary"]["reproducible"] == "seeded"
    # Tokens are counted where they are sampled: what was kept was not asked for again.
    assert report["summary"]["tokens_generated"] < report["summary"]["tokens"] / 2
    assert {row["policy"] for row in rows} == {Ref.parse(job("a")["inputs"]["policy"][0]).digest}


def test_a_killed_flow_takes_its_engine_along_and_the_same_command_asks_only_for_the_rest(tmp_path: Path) -> None:
    for name, table in (("plan", plan()), ("problems", problems())):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    command = [sys.executable, "-m", "gradus", "rollout", "--plan", "plan.parquet", "--problems", "problems.parquet"]
    command += ["--engine", "vllm", "--json", "--set", "flush_s=0", "--set", "shard_rows=12"]
    command += ["--set", "vllm.enforce_eager=true", "--set", "vllm.max_num_seqs=2"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "GRADUS_", "MLFLOW_"))}
    env = {
        **kept,
        "GRADUS_HOME": str(tmp_path / "home"),
        "GRADUS_SERVER_IDLE_S": "10",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + 600
        while not list(tmp_path.glob("home/lake/rollouts/*/.scratch/open-*.parquet")):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        family = psutil.Process(process.pid).children(recursive=True)
        family = [p for p in family if "uvicorn" not in p.cmdline()]  # Prefect's server stays for the next command
        assert any("EngineCore" in " ".join(p.cmdline()) for p in family)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert all_gone([p for p in family if p.is_running()])
        command += ["--set", "vllm.sleep=true"]
        done = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=log, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text()
    (folder,) = (tmp_path / "home" / "lake" / "rollouts").iterdir()
    rows = [row for part in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]
    assert [row["rollout_id"] for row in rows] == [f"{folder.name[:16]}:{name}" for name in IDS]
    assert not list(folder.glob(".scratch"))
    (remark,) = json.loads(done.stdout)["remarks"]
    assert remark.startswith("vLLM has no sleep mode on this machine: its engine was ended")
