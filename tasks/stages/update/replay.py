"""Compute a train state that was not kept by repeating the updates since the last one that was.

Rollouts, scores and settings are in the lake, so the same updates make the same bits, which is checked: the policy that
they end in must be the checkpoint's to the last one. That holds on a CPU, and on a GPU with update.deterministic.
"""

import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from gradus.data.errors import CorruptArtifactError, PrunedError, StageError
from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.data.lake.train_states import (
    begin_afresh,
    is_trained,
    is_whole,
    pointer_of,
    refuse_unrepeatable,
    state_files,
    state_ref,
    updates_since_kept,
)
from gradus.data.lake.whole_files import disk_errors
from gradus.models.training.passes import Budget
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.host.waiting import hold
from gradus.tasks.runs.records import Report
from gradus.tasks.stages.context import Beat, StageContext
from gradus.tasks.stages.update.train_state import KeptTraining, policy_dtype, state_contents, write_train_state


def makes_the_same_bits(config: UpdateConfig, device: torch.device) -> bool:
    """Return whether an update that is repeated in one process ends in the same bits."""
    return config.launch.num_ranks == 1 and (device.type == "cpu" or config.deterministic)


def kept_files(store: Store, ref: Ref, beat: Beat) -> dict[str, Path]:
    """The files of a checkpoint's train state, computed again if they are gone; empty for a policy from elsewhere."""
    if not is_trained(store, ref):
        return {}
    if state_files(store, ref) is None:
        restore_checkpoint(store, ref, beat)
    return state_files(store, ref) or {}


def restore_checkpoint(store: Store, ref: Ref, beat: Beat) -> None:
    """Compute the train state of a checkpoint again and store it, and put pruned weights back.

    Raise StageError if that is not possible, or does not end in the same bits.
    """
    own = state_ref(ref)
    with hold(store.path(own), "", lambda text: beat(0.0, text)):
        if is_whole(store, ref):
            return
        updates = updates_since_kept(store, ref)
        refuse_unrepeatable(store, ref, updates)
        store.discard(own)
        out, warm = store.writer(own), Warm()
        try:
            for number, update in enumerate(updates, start=1):
                folder = out.scratch / str(number)
                made = _repeated(store, update, folder, warm, _counted(beat, number, len(updates)))
                if update == ref:
                    _put_back(store, made)
                shutil.rmtree(folder)
            start = warm.of(KeptTraining).take(ref)
            assert start is not None
            contents = state_contents(start.train_state, start.critic, policy_dtype(store.path(ref)))
            write_train_state(out, ref, store.manifest(ref).files, contents)
        except Exception:
            shutil.rmtree(out.scratch, ignore_errors=True)
            store.remove_empty(own)
            raise


def restored(job: Mapping[str, str], _warm: Warm, beat: Beat) -> Report:
    """Restore the checkpoint that a job names, in a worker of its own."""
    restore_checkpoint(Store(Path(job["lake"])), Ref.parse(job["checkpoint"]), beat)
    return {}


def _counted(beat: Beat, number: int, num_updates: int) -> Beat:
    def counted(frac: float, text: str = "") -> None:
        beat((number - 1 + frac) / num_updates, f"repeating update {number} of {num_updates}: {text}")

    return counted


def _repeated(store: Store, ref: Ref, folder: Path, warm: Warm, beat: Beat) -> ShardWriter:
    """Run an update again on the state that the worker keeps of the last one; return its files in a folder."""
    # An update begins by restoring the state from which it continues.
    from gradus.tasks.stages.update.stage import updated  # noqa: PLC0415

    manifest, out = store.manifest(ref), ShardWriter(folder, ref)
    identity = manifest.identity
    settings = {name: value for name, value in manifest.config.items() if name not in identity.get("facts", {})}
    config = UpdateConfig.model_validate({**settings, "between_updates": "device"})
    inputs = {role: tuple(map(Ref.parse, texts)) for role, texts in manifest.parents.items()}
    ctx = StageContext(store, inputs, out, identity["seed"], warm, beat)
    try:
        with _threads(pointer_of(store, ref).threads):
            updated(ctx, config, Budget(config.micro_tokens), saves=False)
    except (CorruptArtifactError, PrunedError) as error:
        raise CorruptArtifactError(f"{ref} cannot be computed again: {error.message}", hint=begin_afresh(ref)) from None
    return out


def _put_back(store: Store, made: ShardWriter) -> None:
    """Compare the computed files with a checkpoint's manifest; move the pruned ones to their place."""
    ref, sums = made.ref, {entry.name: entry.sha256 for entry in made.entries}
    folder, pruned = store.path(ref), store.pruned(ref)
    policy = [entry for entry in store.manifest(ref).files if entry.name.endswith(".safetensors")]
    for entry in policy:
        if sums.get(entry.name) != entry.sha256:
            raise StageError(
                f"repeating the updates that made {ref} ended in another {entry.name}: on this machine, or by this "
                "version of Gradus and its libraries, they do not make the same bits",
                hint=begin_afresh(ref),
            )
    with disk_errors(folder):
        for name in pruned & sums.keys():
            (made.folder / name).replace(folder / name)


@contextmanager
def _threads(number: int) -> Generator[None]:
    """Compute with as many threads as the update did: sums are taken in another order by another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
