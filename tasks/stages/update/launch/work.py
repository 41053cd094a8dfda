"""The work of a rank: the stage's own function, on the same jobs as every other rank of the process group."""

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
from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.data.package import package_file
from gradus.models.processes.parent import Parent
from gradus.models.training.parallel import Ranks, mesh_of
from gradus.models.training.passes import Budget, RanksMemoryError
from gradus.tasks.artifacts.weights import place
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.identity.loading import refuse_unpinned
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.update.launch.ranks import AGAIN_S, RankJob, rank_name
from gradus.tasks.stages.update.stage import updated

_PARTS = ("data", "models", "tasks")
_HINTS = {
    "settings": "let one launch end before the next begins; repeat the command",
    "inputs": "the hosts must share the folder GRADUS_HOME; repeat the command",
    "code": "install the same versions of gradus and torch on every host; repeat the command",
}
_LOOPBACK = "lo"
_JOIN_S = 900
"""Seconds that ranks wait for those of other hosts."""


def work(parent: Parent) -> int:
    """Do the first job, and those after it while the ranks stay; return the exit code, 1 if memory ran out."""
    jobs, warm = parent.incoming(), Warm()
    first = jobs.get()
    job = RankJob(**first["job"])
    try:
        with grouped(job.update_config(), first["meeting"]) as ranks:
            names = ranks.gathered(rank_name(ranks.rank, ranks.num_ranks, os.getpid()))
            if ranks.writes:
                parent.send({"kind": "here", "names": names})
            _one_job(job, ranks, warm, parent)
            while job.stays:
                _one_job(job := next_job(ranks, jobs), ranks, warm, parent)
    except RanksMemoryError as error:
        parent.send({"kind": "memory", "num_tokens": error.num_tokens})
        return 1
    return 0


def _one_job(job: RankJob, ranks: Ranks, warm: Warm, parent: Parent) -> None:
    parent.send({"kind": "begun", "output": job.output})
    refuse_disagreement(ranks, job)
    config = job.update_config()
    result = updated(
        _context(job, warm, parent, writes=ranks.writes), config, Budget(job.num_tokens, job.num_halvings, ranks)
    )
    refuse_unpinned(config)
    ranks.wait()  # one that cannot keep its part fails before the update counts as done
    parent.send({"kind": "done", "result": result.to_json() if ranks.writes else None})


def _context(job: RankJob, warm: Warm, parent: Parent, *, writes: bool) -> StageContext:
    store, output = Store(Path(job.lake)), Ref.parse(job.output)

    def beat(frac: float, text: str = "") -> None:
        if writes:
            parent.send({"kind": "beat", "frac": frac, "text": text})

    return StageContext(
        store=store,
        inputs={role: tuple(map(Ref.parse, refs)) for role, refs in job.inputs.items()},
        out=store.writer(output) if writes else _Unwritten(store, output),
        seed=job.seed,
        warm=warm,
        beat=beat,
        facts=job.facts,
    )


class _Unwritten(ShardWriter):
    """The output as ranks see it that write nothing: its name, and the state that an earlier attempt has left."""

    def __init__(self, store: Store, ref: Ref) -> None:  # pyright: ignore[reportMissingSuperCall]
        # Not that of a writer: it would look through what rank 0 writes meanwhile, and remove what is not whole.
        self.ref = ref
        self.folder = store.path(ref)


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
        if (there := torch.cuda.device_count()) < num_local:
            raise BadInputError(
                f"update.launch.processes = {num_local}, and {socket.gethostname()} has {there} GPUs",
                hint=f"set update.launch.processes={there}, or update.device=cpu",
            )
        torch.cuda.set_device(local_rank)
    if config.launch.hosts == 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
    store, _, _ = next(rendezvous(meeting, rank, num_ranks, timeout=timedelta(seconds=_JOIN_S)))
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", store=store, rank=rank, world_size=num_ranks
    )
    ranks = Ranks(rank, num_ranks, local_rank, num_local, mesh_of(num_ranks, device))
    yield ranks
    ranks.wait()
    distributed.destroy_process_group()


def next_job(ranks: Ranks, jobs: SimpleQueue[dict[str, Any]]) -> RankJob:
    """Wait until the stage asks for another update, and return the job; rank 0 has it from the stage, others from it.

    They ask each other again and again: an exchange of long waiting would end at a limit of PyTorch's.
    """
    while True:
        found = next(filter(None, ranks.gathered(None if jobs.empty() else jobs.get()["job"])), None)
        if found is not None:
            return RankJob(**found)
        time.sleep(AGAIN_S)


def refuse_disagreement(ranks: Ranks, job: RankJob) -> None:
    """Raise StageError naming the first rank that has other settings, inputs or code than rank 0."""
    first, *others = ranks.gathered({"host": socket.gethostname(), **_digests(job)})
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
