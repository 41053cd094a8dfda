"""Stage rollout with a real vLLM: exactly once through the death of the worker and of the flow."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from tests.patience import runs, until

ROOT = Path(__file__).parents[2]
NUM_GROUPS, NUM_SAMPLES = 6, 4
IDS = [f"p{group}@r0h0:{sample}" for group in range(NUM_GROUPS) for sample in range(NUM_SAMPLES)]
COMMAND = [sys.executable, "-m", "gradus", "rollout", "--plan", "plan.parquet", "--problems", "problems.parquet"]
COMMAND += ["--engine", "vllm", "--json", "--set", "flush_s=0", "--set", "shard_rows=12"]
COMMAND += ["--set", "vllm.enforce_eager=true", "--set", "vllm.max_num_seqs=2"]


def problems() -> pa.Table:
    names = [f"p{i}" for i in range(NUM_GROUPS)]
    questions = [f"{i} + {i + 1} =" for i in range(NUM_GROUPS)]
    return pa.table({"problem_id": names, "question": questions, "answer": ["1"] * NUM_GROUPS})


def plan() -> pa.Table:
    names = [f"p{i}" for i in range(NUM_GROUPS)]
    columns = {"problem_id": names, "group_id": [f"{name}@r0h0" for name in names]}
    sizes = pa.array([NUM_SAMPLES] * NUM_GROUPS, pa.int32())
    return pa.table({**columns, "n": sizes, "max_tokens": pa.array([60] * NUM_GROUPS, pa.int32())})


def all_gone(processes: list[psutil.Process], within_s: float = 10) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [process for process in alive if runs(process.pid)]


def family(pid: int) -> list[psutil.Process]:
    """The processes below a command, but for Prefect's server and its keeper, which stay for the next one."""
    stay = {"uvicorn", "gradus.tasks.servers.keeper"}
    return [p for p in psutil.Process(pid).children(recursive=True) if runs(p.pid) and not stay & {*p.cmdline()}]


def kept_rows(home: Path) -> int:
    """Rows in the shards that the stage wrote, finished or not; a file that is being written has none yet."""
    while True:
        files = [*home.glob("lake/rollouts/*/part-*.parquet"), *home.glob("lake/rollouts/*/.scratch/open-*.parquet")]
        finished = {file.name.removeprefix("part-")[:5] for file in files if file.name.startswith("part-")}
        counted = [f for f in files if f.name[0] == "p" or f.name.split("-")[1] not in finished]
        try:
            return sum(pq.read_table(file).num_rows for file in counted)
        except FileNotFoundError:  # a shard was finished since its folder was listed, and its open file removed
            continue


def test_a_killed_worker_and_a_killed_flow_leave_their_rows_and_no_process_and_the_command_asks_only_for_the_rest(
    tmp_path: Path,
) -> None:
    for name, table in (("plan", plan()), ("problems", problems())):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "GRADUS_", "MLFLOW_"))}
    env |= {"GRADUS_HOME": str(tmp_path / "home"), "GRADUS_SERVER_IDLE_S": "10", "GRADUS_REPORT": "later"}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    with (tmp_path / "log").open("wb") as log, ExitStack() as started:

        def start(**fault: str) -> "subprocess.Popen[bytes]":
            given = {"cwd": tmp_path, "env": {**env, **fault}, "stdout": log, "stderr": log}
            process = started.enter_context(subprocess.Popen(COMMAND, **given, start_new_session=True))
            started.callback(process.kill)
            return process

        process = start(GRADUS_FAULT="rollout:after_row#17")
        seen: list[psutil.Process] = []
        while process.poll() is None:
            seen = family(process.pid) or seen
            time.sleep(0.5)
        assert process.returncode == 1, (tmp_path / "log").read_text()
        assert "killed by SIGKILL" in (tmp_path / "log").read_text()
        assert all_gone(seen)
        assert kept_rows(tmp_path / "home") == 17

        process = start()
        until(lambda: process.poll() is not None or kept_rows(tmp_path / "home") != 17, 600, 0.02)
        assert process.poll() is None, (tmp_path / "log").read_text()
        seen = family(process.pid)
        assert any("EngineCore" in " ".join(p.cmdline()) for p in seen)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert all_gone([p for p in seen if p.is_running()])
        command = [*COMMAND, "--set", "vllm.sleep=true"]
        done = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=log, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text()
    (folder,) = (tmp_path / "home" / "lake" / "rollouts").iterdir()
    rows = [row for part in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]
    assert [row["rollout_id"] for row in rows] == [f"{folder.name[:16]}:{name}" for name in IDS]
    assert len({row["policy"] for row in rows}) == 1
    assert not list(folder.glob(".scratch"))
    found = json.loads(done.stdout)
    (remark,) = found["remarks"]
    assert remark.startswith("vLLM has no sleep mode on this machine: its engine was ended")
