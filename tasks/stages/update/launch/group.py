"""The process group of an update's ranks: joining it, the next job, and a check that all ranks agree on it."""

import hashlib
import json
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.manifest import FILE_NAME
from gradus.data.lake.store import Ref, Store
from gradus.data.package import package_file
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.parallel.sharding import mesh_of
from gradus.tasks.artifacts.weights import place
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.update.launch.job import RankJob

_PARTS = ("data", "models", "tasks")
_HINTS = {
    "settings": "let one launch end before the next begins; repeat the command",
    "inputs": "the hosts must share the folder GRADUS_HOME; repeat the command",
    "code": "install the same versions of gradus and torch on every host; repeat the command",
}
_LOOPBACK = "lo"
_AGAIN_S = 0.1
_JOIN_S = 900
"""Seconds that ranks wait for those of other hosts."""


@contextmanager
def grouped(config: UpdateConfig, meeting: str) -> Generator[Ranks]:
    """Join the other ranks, as the environment says, and leave once all have done their work.

    The ranks of one host meet in a file (`meeting` is file://PATH), so that nothing listens on the network, those of
    several hosts at an address that rank 0 opens (tcp://HOST:PORT).
    """
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, num_local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device = place(config.device)
    if device.type == "cuda":
        _take_gpu(local_rank, num_local)
    if config.launch.hosts == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
    store, _, _ = next(rendezvous(meeting, rank, num_ranks, timeout=timedelta(seconds=_JOIN_S)))
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=num_ranks,
    )
    ranks = Ranks(rank, num_ranks, local_rank, num_local, mesh_of(num_ranks, device))
    yield ranks
    ranks.wait()
    distributed.destroy_process_group()


def _take_gpu(local_rank: int, num_local: int) -> None:
    there = torch.cuda.device_count()
    if there < num_local:
        raise BadInputError(
            f"update.launch.processes = {num_local}, and {socket.gethostname()} has {there} GPUs",
            hint=f"set update.launch.processes={there}, or update.device=cpu",
        )
    torch.cuda.set_device(local_rank)


def next_job(ranks: Ranks, jobs: SimpleQueue[dict[str, Any]]) -> RankJob:
    """Wait until the stage asks for another update, and return the job; rank 0 has it from the stage, others from it.

    They ask each other again and again: an exchange of long waiting would end at a limit of PyTorch's.
    """
    while True:
        content = b"" if jobs.empty() else json.dumps(jobs.get()["job"]).encode()
        found = next(filter(None, ranks.gathered(content)), None)
        if found is not None:
            return RankJob(**json.loads(found))
        time.sleep(_AGAIN_S)


def refuse_disagreement(ranks: Ranks, job: RankJob) -> None:
    """Raise StageError naming the first rank that has other settings, inputs or code than rank 0."""
    own = {"host": socket.gethostname(), **_digests(job)}
    first, *others = (json.loads(content) for content in ranks.gathered(json.dumps(own).encode()))
    for rank, other in enumerate(others, 1):
        for what, hint in _HINTS.items():
            if other[what] != first[what]:
                who, zero = f"rank {rank} on {other['host']}", f"rank 0 on {first['host']}"
                raise StageError(f"{who} has other {what} than {zero}: no step was taken", hint=hint)


def _digests(job: RankJob) -> dict[str, str]:
    store = Store(Path(job.lake))
    refs = [Ref.parse(ref) for given in job.inputs.values() for ref in given]
    manifests = b"\0".join((store.path(ref) / FILE_NAME).read_bytes() for ref in refs)
    sources = sorted(path for part in _PARTS for path in package_file(part).rglob("*.py"))
    code = b"\0".join([torch.__version__.encode(), *(path.read_bytes() for path in sources)])
    given = {"settings": json.dumps(asdict(job), sort_keys=True).encode(), "inputs": manifests, "code": code}
    return {what: hashlib.sha256(content).hexdigest() for what, content in given.items()}
