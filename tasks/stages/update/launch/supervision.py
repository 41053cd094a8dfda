"""The stage's side of an update on several processes: jobs for the ranks, and their results.

    result = launched(ctx, config)

A rank's error becomes the stage's own. If memory ran out on one, all begin anew with half as many tokens at once.
"""

import signal
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from gradus.data.errors import GradusError, StageError, error_class
from gradus.tasks.artifacts.adapters import begins_adapter
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.preflight.abilities import check_launch
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.update.launch.job import RankJob
from gradus.tasks.stages.update.launch.mail import Note
from gradus.tasks.stages.update.launch.standing import RankGroup, begun, place_of
from gradus.tasks.stages.update.replay import kept_files

_AGAIN_S = 0.1
_LATE_S = 5.0
"""Seconds to wait for another host's report of a rank that died."""
_AGAIN = "repeat the command: it begins this update anew"


@dataclass
class KeptRanks:
    """Ranks of a worker's last update that wait for the next one, and the checkpoint that they hold."""

    group: RankGroup | None = None
    digest: str = ""

    def take(self, config: UpdateConfig) -> RankGroup | None:
        """Hand over the ranks if they can run an update with these settings; end them otherwise."""
        group, self.group = self.group, None
        if group is None or group.serves(config):
            return group
        group.end()
        return None


def launched(ctx: StageContext, config: UpdateConfig) -> StageResult:
    """Take an update's steps on several processes, and return what rank 0 reports."""
    check_launch(config)
    kept = ctx.warm.of(KeptRanks)
    group = kept.take(config)
    held = group is not None and kept.digest == ctx.one("policy").digest
    if not held and not begins_adapter(ctx.store, ctx.one("policy"), config):
        kept_files(ctx.store, ctx.one("policy"), ctx.beat)
    num_tokens, num_halvings = config.micro_tokens, 0
    while True:
        place, stays = place_of(ctx, config)
        job = RankJob(
            id=uuid.uuid4().hex if group is None else group.id,
            lake=str(ctx.store.root),
            output=str(ctx.out.ref),
            inputs={role: [str(ref) for ref in refs] for role, refs in ctx.inputs.items()},
            config=config.model_dump(mode="json"),
            seed=ctx.seed,
            facts=ctx.facts,
            num_tokens=num_tokens,
            num_halvings=num_halvings,
            number=0 if group is None else group.num_jobs,
            stays=stays,
        )
        if group is None:
            group = begun(job, place)
        else:
            group.ask(job)
        found = _done(group, ctx)
        if isinstance(found, StageResult):
            ctx.out.take_over()
            kept.group, kept.digest = (group if stays else None), ctx.out.ref.digest
            return found
        group, num_tokens, num_halvings = None, found, num_halvings + 1


def _done(group: RankGroup, ctx: StageContext) -> StageResult | int:
    """Return the result of the group's job, or how many tokens at once to begin anew with.

    Ranks that do not stay, or could not do it, are gone then.
    """
    remain = False
    try:
        found = outcome(_watched(group, ctx), group.notes)
        remain = group.stays and isinstance(found, StageResult)
        return found
    finally:
        if not remain:
            group.end()


def _watched(group: RankGroup, ctx: StageContext) -> int:
    """Pass on beats and keep every other message until ranks that stay are done, or torchrun ends; return its code."""

    def read() -> None:
        for note in group.mail.new():
            if note["kind"] == "beat":
                ctx.beat(note.get("frac", 0.0), note.get("text", ""))
            else:
                group.notes.append(note)

    while (code := group.agent.poll()) is None:
        read()
        if group.stays and group.is_done:
            return 0
        time.sleep(_AGAIN_S)
    give_up = time.monotonic() + _LATE_S
    read()
    while code and _cause(group.notes) is None and time.monotonic() < give_up:
        time.sleep(_AGAIN_S)
        read()
    return code


def outcome(code: int, notes: Sequence[Note]) -> StageResult | int:
    """Return what rank 0 reports, or how many tokens at once to begin anew with; or raise what went wrong."""
    done = next((note for note in notes if note["kind"] == "done"), None)
    if code == 0 and done is not None:
        return StageResult.from_json(done.get("result", {}))
    memory = [note["num_tokens"] for note in notes if note["kind"] == "memory" and "num_tokens" in note]
    if memory:
        return min(memory)
    cause = _cause(notes)
    if cause is not None:
        raise cause
    if silent := _silent(notes):
        raise StageError(f"nothing more was heard of {_who(silent, notes)}", hint=_AGAIN)
    errors = sorted((note for note in notes if note["kind"] == "error"), key=lambda note: note.get("time_s", 0.0))
    if errors:
        first = errors[0]
        raise StageError(f"{_who(first, notes)} failed: {first.get('message')}", hint=first.get("hint") or _AGAIN)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    raise StageError(f"torchrun of the update {how}", hint=_AGAIN)


def _cause(notes: Sequence[Note]) -> GradusError | None:
    """The error that the others follow from, if it is known for certain: one of ours, or a rank that was killed.

    When a rank is gone, all that wait for it fail too, often before torchrun has seen which one it was.
    """
    for note in notes:
        kind = error_class(note.get("type", "")) if note["kind"] == "error" and note.get("known") else None
        if kind is not None:
            return kind(note.get("message", ""), hint=note.get("hint", ""))
    for note in notes:
        number = note.get("signal", 0)
        if note["kind"] == "ended" and number not in (0, signal.SIGTERM):
            cause = " (out of memory?)" if number == signal.SIGKILL else ""
            return StageError(f"{_who(note, notes)} was killed by {signal.Signals(number).name}{cause}", hint=_AGAIN)
    return None


def _silent(notes: Sequence[Note]) -> Note | None:
    """A rank of another host that said nothing of its end, as its torchrun did not: they are gone."""
    heard = {note.get("host") for note in notes if note["kind"] in ("error", "ended", "memory")}
    return next((note for note in notes if heard and note["kind"] == "here" and note.get("host") not in heard), None)


def _who(note: Note, notes: Sequence[Note]) -> str:
    num_ranks = len({each.get("rank") for each in notes if each["kind"] == "here"})
    return f"rank {note.get('rank')} of {num_ranks} (process {note.get('pid')} on {note.get('host')})"
