"""Stage rollout on real Ray workers: the same bytes, whoever of workers and stage is killed; errors in a sentence."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.store import Ref, Store
from gradus.models.engines.base import EngineError, Request
from gradus.models.policy import new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.config.rollout import RayConfig, RolloutConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import Job, execute
from gradus.tasks.runtime.supervise import Limits, WorkerPool
from gradus.tasks.stages.rollout import ray_engine as ray_workers
from gradus.tasks.stages.rollout.ray_engine import Process, RayEngine, Sampled, SamplingActor

# Looked for, not imported: Ray reads its environment when it is.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="the package ray is not installed")

ROOT = Path(__file__).parents[4]
NUM_GROUPS, NUM_SAMPLES = 6, 4
IDS = [f"{0:016x}:p{group}@h0:{sample}" for group in range(NUM_GROUPS) for sample in range(NUM_SAMPLES)]
LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
Look = Callable[[float, str], None]
Server = Any


class House:
    """A lake with a policy, problems and a plan of 24 rollouts: three shards of eight."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root / "lake")
        policy = new_policy(tiny_tokenizer(), width=32, layers=2, heads=2, max_positions=256, seed=0)
        policy.model.save_pretrained(root / "p")
        policy.tokenizer.save_pretrained(root / "p")
        names = [f"p{i}" for i in range(NUM_GROUPS)]
        problems = pa.table({"problem_id": names, "question": [f"{i} + 1 =" for i in range(NUM_GROUPS)]})
        sizes = pa.array([NUM_SAMPLES] * NUM_GROUPS, pa.int32())
        plan = pa.table({"problem_id": names, "group_id": [f"{name}@h0" for name in names], "n": sizes})
        self.inputs = {
            "plan": [str(self.store.put("plan", plan))],
            "problems": [str(self.store.put("problems", problems))],
        }
        self.inputs["policy"] = [str(self.store.adopt(root / "p"))]
        self.num_jobs = 0

    def job(self, **config: Any) -> dict[str, Any]:
        self.num_jobs += 1
        given = {"shard_rows": 8, "flush_s": 0.0, **config}
        return vars(Job("rollout", str(self.store.root), f"rollouts/{self.num_jobs:032x}", self.inputs, given, seed=5))

    def shards(self, job: dict[str, Any]) -> list[bytes]:
        folder = self.store.path(Ref.parse(job["output"]))
        return [path.read_bytes() for path in sorted(folder.glob("part-*.parquet"))]

    def ids(self, job: dict[str, Any]) -> list[str]:
        return self.store.read(Ref.parse(job["output"]), ["rollout_id"]).column(0).to_pylist()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house"))


def run(job: dict[str, Any], look: Look = lambda _frac, _text: None) -> dict[str, Any]:
    return execute(job, Warm(), look)


def family(pid: int | None = None) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def said(process: psutil.Process) -> str:
    """A process's command, or nothing where it has ended."""
    try:
        return "" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def folders_of(pid: int) -> list[Path]:
    """The folders of temporary files that a process holds, or held when it was killed."""
    locks = Path(tempfile.gettempdir()).glob("gradus-ray-*/.lock")
    return [lock.parent for lock in locks if lock.stat().st_size and json.loads(lock.read_text())["pid"] == pid]


def test_settings_of_ray_are_no_part_of_what_a_result_is() -> None:
    many = RolloutConfig(ray=RayConfig(workers=8, address="auto", gpus=1.0, max_restarts=9))
    assert many.identified() == RolloutConfig().identified()
    with pytest.raises(ValidationError, match="address"):
        RayConfig(address="ray://127.0.0.1:10001")


def test_two_workers_make_the_same_shards_though_one_is_killed_and_only_its_shards_are_sampled_again(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, spread = house.job(), house.job(ray={"workers": 2, "max_restarts": 1})
    sockets, folders = set[str](), list[Path]()

    def look(_frac: float, text: str) -> None:
        if not text.startswith("starting"):
            listening = [c for p in family() if said(p) for c in p.net_connections() if c.status == "LISTEN"]
            sockets.update(connection.laddr.ip for connection in listening)
            folders.extend(folders_of(os.getpid()))

    left = Path(tempfile.mkdtemp(prefix="gradus-ray-"))
    (left / ".lock").write_text('{"pid": 0}')  # by a process that was killed: no lock of the kernel is on it
    sampled = tmp_path / "sampled"
    monkeypatch.setenv("SAMPLED", str(sampled))
    monkeypatch.setattr(SamplingActor, "sample", _noted)
    monkeypatch.setenv("GRADUS_FAULT", "ray:1#3")  # the first process in the first worker's place, at its third row
    before, report = run(alone), run(spread, look)
    assert len(house.shards(alone)) == 3
    assert house.shards(spread) == house.shards(alone)
    assert house.ids(spread) == IDS
    assert report["summary"]["reproducible"] == "bitwise"
    assert report["summary"]["tokens_generated"] == before["summary"]["tokens_generated"]
    assert report["summary"]["remarks"] == ["Ray worker 1 of 2 died and was restarted"]
    # The shard that died with the first worker went to its successor; the others were sampled once.
    calls = [line.split() for line in sampled.read_text().splitlines()]
    assert sorted(Counter(first for _, first in calls).values()) == [1, 1, 2]
    assert Counter(first for _, first in calls)[IDS[0]] == 2
    assert len({pid for pid, _ in calls}) == 3
    assert sockets
    assert sockets <= LOOPBACK
    assert folders
    assert not any(folder.exists() for folder in [*folders, left])
    assert not [process for process in family() if "ray" in said(process)]


def test_a_stage_that_is_killed_leaves_no_process_and_the_next_attempt_makes_only_what_is_missing(
    house: House, tmp_path: Path
) -> None:
    alone, job = house.job(), house.job(ray={"workers": 2})
    run(alone)
    environment = {
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
        "GRADUS_FAULT": "rollout:after_shard#1",
    }
    others, seen, limits = (
        set(family()),
        dict[psutil.Process, set[str]](),
        Limits(wall_s=200, silence_s=100, start_s=100),
    )

    def look() -> None:
        while not over.wait(0.2):
            for process in family():
                if process not in others:
                    seen.setdefault(process, set()).add(said(process))

    over = threading.Event()
    with ThreadPoolExecutor(1) as looker, WorkerPool(tmp_path, environment) as pool:
        looking = looker.submit(look)
        try:
            with pytest.raises(StageError, match="killed by SIGKILL"):
                pool.run("policy", job, limits, lambda _frac, _text: None)
        finally:
            over.set()
        looking.result()
    names = " ".join(name for had in seen.values() for name in had)
    assert all(name in names for name in ("gcs_server", "raylet", "ray::SamplingActor"))
    _, alive = psutil.wait_procs(list(seen), timeout=15)
    assert not [name for process in alive if (name := said(process))]
    assert len(list(house.store.path(Ref.parse(job["output"])).glob("part-*.parquet"))) == 1
    # Without Ray this time: who samples is no part of what a result is.
    job["config"]["ray"]["workers"] = 0
    assert run(job)["summary"]["shards_reused"] == 1
    assert house.shards(job) == house.shards(alone)


CLUSTER = """
import sys
from gradus.tasks.config.rollout import RayConfig
from gradus.tasks.stages.rollout.ray_engine import cluster
with cluster(RayConfig(workers=2)) as ray:
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[str, int]]:
    """A Ray that another process runs: its address, and that process."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ray_workers._SETTINGS, "PYTHONPATH": str(ROOT / "src")}.items():
            patch.setenv(name, value)  # one token for both
        with subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            yield process.stdout.readline().strip(), process.pid
            process.stdin.close()


@pytest.fixture
def other_threads() -> Iterator[int]:
    """Another number of threads than the environment's, and no more than two: a library may refuse to use those."""
    threads = torch.get_num_threads()
    other = 2 if threads == 1 else 1
    torch.set_num_threads(other)
    yield other
    torch.set_num_threads(threads)


def test_a_worker_that_dies_too_often_ends_the_stage_and_finished_shards_stay(
    house: House, server: Server, running: tuple[str, int], other_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, note = list[Process](), RayEngine._note

    def spy(engine: RayEngine, number: int, process: Process) -> None:
        found.append(process)
        note(engine, number, process)

    monkeypatch.setattr(RayEngine, "_note", spy)
    address, owner = running
    hosted = {"url": server.url, "model": "m", "tokens": False, "concurrency": 1}
    ray = {"workers": 1, "address": address, "max_restarts": 1}
    job = house.job(engine="openai", server=hosted, ray=ray)

    def answer(_path: str, _body: dict[str, Any]) -> tuple[int, Any]:
        if len(server.asked) in (11, 16):
            for process in family(owner):
                if said(process).startswith("ray::SamplingActor"):
                    process.send_signal(signal.SIGKILL)
                    process.wait(10)
        message = {"role": "assistant", "content": str(len(server.asked))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}

    server.answer = answer
    with pytest.raises(StageError, match=r"Ray worker 1 of 1 died more often than ray\.max_restarts = 1: .*lower"):
        run(job)
    assert len(house.shards(job)) == 1
    report = run(job)
    assert report["summary"]["shards_reused"] == 1
    assert house.ids(job) == IDS
    assert report["summary"]["reproducible"] == "seeded"
    # The first shard was asked for once; at each death the eleventh and the sixteenth request lost their shard.
    assert Counter(body["seed"] for body in server.asked[:8]).most_common(1)[0][1] == 1
    assert max(Counter(body["seed"] for body in server.asked[8:]).values()) <= 3
    assert not {body["seed"] for body in server.asked[:8]} & {body["seed"] for body in server.asked[8:]}
    # Every worker, those that were restarted too, computes with as many threads as the stage.
    assert {process.num_threads for process in found} == {other_threads}
    assert len({process.pid for process in found}) == 2


def test_an_engine_that_fails_in_a_worker_says_what_it_would_have_said_in_the_stage(
    house: House, server: Server, running: tuple[str, int]
) -> None:
    server.close()
    hosted = {"url": server.url, "tokens": False, "retries": 0}
    told: list[str] = []
    for ray in ({}, {"workers": 1, "address": running[0]}):
        with pytest.raises(StageError) as error:
            run(house.job(engine="openai", server=hosted, ray=ray))
        told.append(str(error.value))
    assert told[0] == told[1]
    assert server.url in told[0]


def test_a_worker_that_finds_no_place_is_not_waited_for_for_ever(house: House, running: tuple[str, int]) -> None:
    ray = {"workers": 1, "address": running[0], "gpus": 1000, "start_s": 1.0}
    with pytest.raises(StageError, match=r"not ready within ray\.start_s = 1 s: each asks for 1 CPUs and 1000 GPUs"):
        run(house.job(ray=ray))


def test_a_cluster_that_is_not_there_is_named(house: House) -> None:
    with pytest.raises(StageError, match=r"no Ray cluster at 127\.0\.0\.1:1: .*start it"):
        run(house.job(ray={"workers": 1, "address": "127.0.0.1:1"}))


def test_a_missing_package_is_told_with_what_to_type(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StageError, match=r"the package ray is not installed; pip install 'gradus\[ray\]'"):
        run(house.job(ray={"workers": 2}))


def test_a_machine_of_a_cluster_without_the_lake_says_what_it_lacks(tmp_path: Path) -> None:
    actor = SamplingActor(1, str(tmp_path / "nowhere"), f"checkpoints/{'a' * 32}", {})
    with pytest.raises(BadInputError, match=rf"has no {tmp_path}/nowhere/checkpoints/aaaa.*GRADUS_HOME"):
        actor.process()


@pytest.mark.parametrize("short", [{"CPU": 1.0, "GPU": 8.0}, {"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0}])
def test_a_worker_that_lost_its_machine_is_not_waited_for_for_ever(short: dict[str, float]) -> None:
    class Smaller:
        """A Ray whose workers never answer, on a cluster that is too small for two."""

        def wait(self, awaited: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
            return [], awaited

        def nodes(self) -> list[dict[str, bool]]:
            return [{"Alive": True}]

        def cluster_resources(self) -> dict[str, float]:
            return short

    engine = RayEngine(Smaller(), RayConfig(workers=2, gpus=1, start_s=0.05), ("", "", {}))
    request = Request("a", (1,), seed=0, max_tokens=1)
    engine._begun["a"] = 0, object()
    with pytest.raises(EngineError, match=r"^some of the 2 Ray workers were not ready within ray\.start_s = 0\.05 s"):
        list(engine.generate([request]))


def _noted(actor: SamplingActor, requests: Sequence[Request]) -> Sampled:
    """`sample`, noted with its process and its first request in the file that the environment names."""
    with Path(os.environ["SAMPLED"]).open("a") as file:
        file.write(f"{os.getpid()} {requests[0].rollout_id}\n")
    return _SAMPLE(actor, requests)


_SAMPLE = SamplingActor.sample
