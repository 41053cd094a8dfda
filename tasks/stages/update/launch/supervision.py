"""The stage's side of an update on several processes: jobs for the ranks, and their results.

    result = launched(ctx, config)

A rank's error becomes the stage's own. If memory ran out on one, all begin anew with half as many tokens at once.
"""

import json
import signal
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradus.data.errors import GradusError, StageError
from gradus.tasks.artifacts.weights import begins_adapter
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import known_error
from gradus.tasks.preflight.abilities import check_launch
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.update.launch.ranks import AGAIN_S, Note, RankGroup, RankJob, begun, place_of
from gradus.tasks.stages.update.replay import kept_files

_LATE_S = 5.0
"""Seconds to wait for the cause, or another host's report, once a rank has failed."""
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
    place, stays = place_of(ctx, config)
    while True:
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
            stays=stays,
        )
        stayed = group is not None
        if group is None:
            group = begun(job, place)
        else:
            group.ask(job)
        try:
            found = _done(group, ctx)
        except StageError:
            if not stayed or group.has_begun:
                raise
            group = None  # one of them was dead, or dying, before the job came
            continue
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
        found = _watched(group, ctx)
        remain = group.stays and isinstance(found, StageResult)
        if isinstance(found, StageResult) and not remain:
            for _ in group.leave():
                pass
        return found
    finally:
        if not remain:
            group.end()


def _watched(group: RankGroup, ctx: StageContext) -> StageResult | int:
    """Pass on beats until rank 0 is done, or it is clear why it will not be."""
    give_up = float("inf")
    while True:
        for note in group.new():
            if note["kind"] == "beat":
                ctx.beat(note["frac"], note["text"])
            elif note["kind"] == "done" and note["result"] is not None:
                return StageResult.from_json(note["result"])
            elif note["kind"] == "memory":
                return note["num_tokens"]
        if group.failures:
            give_up = min(give_up, time.monotonic() + _LATE_S)
            elsewhere = [note for path in group.folder.glob("lost-*.json") for note in json.loads(path.read_bytes())]
            failures = [*group.failures, *elsewhere]
            late = time.monotonic() >= give_up or (group.is_over and not group.elsewhere)
            if late or cause_of(failures, group.name) is not None:
                raise error_of(failures, group.name, group.elsewhere)
        time.sleep(AGAIN_S)


def error_of(notes: Sequence[Note], name: Callable[[int], str], elsewhere: Sequence[int] = ()) -> GradusError:
    """Return what went wrong: the cause, a rank of another host of which nothing was heard, or the first error."""
    cause = cause_of(notes, name)
    if cause is not None:
        return cause
    heard = {note["rank"] for note in notes}
    first = next((note for note in notes if note["kind"] == "error"), None)
    silent = next((rank for rank in elsewhere if rank not in heard), None)
    if silent is not None:
        return StageError(f"nothing more was heard of {name(silent)}", hint=_AGAIN)
    if first is not None:
        return StageError(f"{name(first['rank'])} failed: {first['message']}", hint=first["hint"] or _AGAIN)
    ended = notes[0]
    return StageError(f"{name(ended['rank'])} ended with exit code {ended['code']}", hint=_AGAIN)


def cause_of(notes: Sequence[Note], name: Callable[[int], str]) -> GradusError | None:
    """The error that the others follow from, if it is known for certain: one of ours, or a rank that was killed.

    When a rank is gone, all that wait for it fail too, often before it is seen which one it was.
    """
    for note in notes:
        if note["kind"] == "error" and (found := known_error(note)) is not None:
            return found
    for note in notes:
        if note["kind"] == "ended" and note["code"] < 0:
            cause = " (out of memory?)" if note["code"] == -signal.SIGKILL else ""
            signal_name = signal.Signals(-note["code"]).name
            return StageError(f"{name(note['rank'])} was killed by {signal_name}{cause}", hint=_AGAIN)
    return None
