"""The process group of an update's ranks: joining it, the next job, and a check that all ranks agree on it."""

import hashlib
import json
import os
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from torch import distributed

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.manifest import FILE_NAME
from gradus.data.lake.store import Ref, Store
from gradus.data.package import package_file
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.parallel.sharding import mesh_of
from gradus.tasks.artifacts.loading import place
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.update.launch.job import RankJob, file_name

_PARTS = ("data", "models", "tasks")
_HINTS = {
    "settings": "let one launch end before the next begins; repeat the command",
    "inputs": "the hosts must share the folder GRADUS_HOME; repeat the command",
    "code": "install the same versions of gradus and torch on every host; repeat the command",
}
_LOOPBACK = "lo"
_AGAIN_S = 0.1


@contextmanager
def grouped(config: UpdateConfig, folder: Path) -> Generator[Ranks]:
    """Join the other ranks, as torchrun's environment says; leave once all have done their work."""
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank, num_local = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device = place(config.device)
    if device.type == "cuda":
        _take_gpu(local_rank, num_local)
    one_host = config.launch.hosts == 1
    if one_host:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder / 'group'}" if one_host else "env://",
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


def next_job(ranks: Ranks, folder: Path, number: int) -> RankJob:
    """Wait until the stage asks for another update, and return the job.

    One rank that sees its file tells the others: on other hosts a file of a shared folder is seen up to a minute late.
    """
    path = folder / file_name(number)
    while True:
        content = path.read_bytes() if path.is_file() else b""
        found = next(filter(None, ranks.gathered(content)), None)
        if found is not None:
            return RankJob.of(found)
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
