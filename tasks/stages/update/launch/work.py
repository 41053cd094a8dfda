"""The work of a rank: the stage's own function, on the same jobs as every other rank."""

from pathlib import Path

from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.passes import Budget, RanksMemoryError
from gradus.tasks.identity.loading import refuse_unpinned
from gradus.tasks.stages.context import Beat, StageContext
from gradus.tasks.stages.update.launch.group import grouped, next_job, refuse_disagreement
from gradus.tasks.stages.update.launch.job import RankJob
from gradus.tasks.stages.update.launch.mail import Note, Writer
from gradus.tasks.stages.update.stage import updated
from gradus.tasks.stages.warm import Warm


def work(path: Path, writer: Writer) -> Note | None:
    """Do the job of a file, and those after it while the ranks stay.

    Return a message if memory ran out, else None: the result was sent.
    """
    job, warm = RankJob.read(path), Warm()
    try:
        with grouped(job.update_config(), path.parent) as ranks:
            _one_job(job, ranks, warm, writer)
            while job.stays:
                job = next_job(ranks, path.parent, job.number + 1)
                _one_job(job, ranks, warm, writer)
    except RanksMemoryError as error:
        return {"kind": "memory", "num_tokens": error.num_tokens}
    return None


def _one_job(job: RankJob, ranks: Ranks, warm: Warm, writer: Writer) -> None:
    refuse_disagreement(ranks, job)
    config = job.update_config()
    result = updated(
        _context(job, warm, writer, writes=ranks.writes), config, Budget(job.num_tokens, job.num_halvings, ranks)
    )
    refuse_unpinned(config)
    ranks.wait()  # one that cannot keep its part fails before the update counts as done
    if ranks.writes:
        writer.send({"kind": "done", "result": result.to_json()})


def _context(job: RankJob, warm: Warm, writer: Writer, *, writes: bool) -> StageContext:
    store, output = Store(Path(job.lake)), Ref.parse(job.output)
    return StageContext(
        store=store,
        inputs={role: tuple(map(Ref.parse, refs)) for role, refs in job.inputs.items()},
        out=store.writer(output) if writes else _Unwritten(store, output),
        seed=job.seed,
        warm=warm,
        beat=_beat(writer) if writes else _no_beat,
        facts=job.facts,
    )


class _Unwritten(ShardWriter):
    """The output as ranks see it that write nothing: its name, and the state that an earlier attempt has left."""

    def __init__(self, store: Store, ref: Ref) -> None:  # pyright: ignore[reportMissingSuperCall]
        # Not that of a writer: it would look through what rank 0 writes meanwhile, and remove what is not whole.
        self.ref = ref
        self.folder = store.path(ref)


def _beat(writer: Writer) -> Beat:
    def beat(frac: float, text: str = "") -> None:
        writer.send({"kind": "beat", "frac": frac, "text": text})

    return beat


def _no_beat(frac: float, text: str = "") -> None:
    """Say nothing."""
