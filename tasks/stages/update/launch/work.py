"""The work of a rank: the stage's own function, on the same jobs as every other rank."""

import os
from pathlib import Path

from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.models.processes.parent import Parent
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.passes import Budget, RanksMemoryError
from gradus.tasks.identity.loading import refuse_unpinned
from gradus.tasks.stages.context import Beat, StageContext
from gradus.tasks.stages.update.launch.group import grouped, next_job, refuse_disagreement
from gradus.tasks.stages.update.launch.job import RankJob
from gradus.tasks.stages.update.launch.ranks import rank_name
from gradus.tasks.stages.update.stage import updated
from gradus.tasks.stages.warm import Warm


def work(parent: Parent) -> int:
    """Do the first job, and those after it while the ranks stay; return the exit code, 1 if memory ran out."""
    jobs, warm = parent.incoming(), Warm()
    first = jobs.get()
    job = RankJob(**first["job"])
    try:
        with grouped(job.update_config(), first["meeting"]) as ranks:
            names = ranks.gathered(rank_name(ranks.rank, ranks.num_ranks, os.getpid()).encode())
            if ranks.writes:
                parent.send({"kind": "here", "names": [name.decode() for name in names]})
            _one_job(job, ranks, warm, parent)
            while job.stays:
                job = next_job(ranks, jobs)
                _one_job(job, ranks, warm, parent)
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
    return StageContext(
        store=store,
        inputs={role: tuple(map(Ref.parse, refs)) for role, refs in job.inputs.items()},
        out=store.writer(output) if writes else _Unwritten(store, output),
        seed=job.seed,
        warm=warm,
        beat=_beat(parent) if writes else _no_beat,
        facts=job.facts,
    )


class _Unwritten(ShardWriter):
    """The output as ranks see it that write nothing: its name, and the state that an earlier attempt has left."""

    def __init__(self, store: Store, ref: Ref) -> None:  # pyright: ignore[reportMissingSuperCall]
        # Not that of a writer: it would look through what rank 0 writes meanwhile, and remove what is not whole.
        self.ref = ref
        self.folder = store.path(ref)


def _beat(parent: Parent) -> Beat:
    def beat(frac: float, text: str = "") -> None:
        parent.send({"kind": "beat", "frac": frac, "text": text})

    return beat


def _no_beat(frac: float, text: str = "") -> None:
    """Say nothing."""
