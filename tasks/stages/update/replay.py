"""The train state of a checkpoint that is not kept, computed again: the updates since the last kept one, repeated.

Rollouts, scores and settings are in the lake, so the same updates make the same bits, which is checked: the policy that
they end in must be the checkpoint's to the last one. That holds on a CPU, and on a GPU with update.deterministic.
"""

import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from gradus.data.errors import CorruptArtifactError, PrunedError, StageError
from gradus.data.lake.manifest import Manifest, sha256_file
from gradus.data.lake.pruned import mark_restored
from gradus.data.lake.room import disk_errors
from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.data.lake.train_states import (
    begin_afresh,
    is_trained,
    is_whole,
    num_threads,
    refuse_unrepeatable,
    state_files,
    state_ref,
    updates_since_kept,
)
from gradus.models.training.checkpoint import SavedDtype
from gradus.models.training.parallel.ranks import ALONE
from gradus.models.training.passes import Budget
from gradus.tasks.artifacts.adapters import begins_adapter
from gradus.tasks.artifacts.policies import EMA
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.waiting import hold
from gradus.tasks.runs.records import Report
from gradus.tasks.stages.context import Beat, StageContext
from gradus.tasks.stages.update.conditions import deterministic
from gradus.tasks.stages.update.start import Start, loaded
from gradus.tasks.stages.update.train_state import policy_dtype, state_contents, write_train_state, write_weights
from gradus.tasks.stages.update.work import Work, files_of_critic
from gradus.tasks.stages.warm import Warm

_SCRATCH = "scratch"


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
        out = store.writer(own)
        try:
            _restore(store, ref, updates, out, beat)
        except Exception:
            shutil.rmtree(out.scratch, ignore_errors=True)
            store.remove_empty(own)
            raise


def restored(job: Mapping[str, str], _warm: Warm, beat: Beat) -> Report:
    """Restore the checkpoint that a job names, in a worker of its own."""
    restore_checkpoint(Store(Path(job["lake"])), Ref.parse(job["checkpoint"]), beat)
    return {}


def _restore(store: Store, ref: Ref, updates: Sequence[Ref], out: ShardWriter, beat: Beat) -> None:
    start: Start | None = None
    for index, update in enumerate(updates):

        def on_beat(frac: float, text: str = "", done: int = index) -> None:
            beat((done + frac) / len(updates), f"repeating update {done + 1} of {len(updates)}: {text}")

        start = _repeated(store, update, start, out, on_beat)
    assert start is not None
    manifest, dtype = store.manifest(ref), policy_dtype(store.path(ref))
    folder = out.scratch / "policy"
    with disk_errors(out.folder):
        _write_weights(start, folder, dtype)
        _put_back(store, ref, folder, manifest)
    write_train_state(out, ref, manifest.files, state_contents(start.train_state, dtype, files_of_critic(start)))


def _write_weights(start: Start, folder: Path, dtype: SavedDtype) -> None:
    """Write policy and average to a folder, as a checkpoint has them."""
    (folder / EMA).mkdir(parents=True)
    scratch = folder / _SCRATCH
    scratch.mkdir()

    def take(name: str, path: Path) -> None:
        path.replace(folder / name)

    write_weights(start.policy, start.train_state, dtype, scratch, take)


def _put_back(store: Store, ref: Ref, folder: Path, manifest: Manifest) -> None:
    """Hold what was computed against the manifest of a checkpoint; move what was pruned of it to its place."""
    pruned = store.pruned(ref)
    policy = [entry for entry in manifest.files if entry.name.endswith(".safetensors")]
    for entry in policy:
        if not (folder / entry.name).is_file() or sha256_file(folder / entry.name) != entry.sha256:
            raise StageError(
                f"repeating the updates that made {ref} ended in another {entry.name}: on this machine, or by this "
                "version of Gradus and its libraries, they do not make the same bits",
                hint=begin_afresh(ref),
            )
    for entry in policy:
        if entry.name in pruned:
            (folder / entry.name).replace(store.path(ref) / entry.name)
    mark_restored(store.path(ref), (entry.name for entry in policy))


def _repeated(store: Store, ref: Ref, before: Start | None, out: ShardWriter, beat: Beat) -> Start:
    """Take the steps of an update again, from `before` or from the train state of its policy on disk."""
    manifest = store.manifest(ref)
    facts = manifest.identity.get("facts", {})
    config = UpdateConfig.model_validate({k: value for k, value in manifest.config.items() if k not in facts})
    inputs = {role: tuple(map(Ref.parse, texts)) for role, texts in manifest.parents.items()}
    ctx = StageContext(store, inputs, out, int(manifest.identity["seed"]), Warm(), beat)
    try:
        work = Work.of(ctx, config)
    except (CorruptArtifactError, PrunedError) as error:
        raise CorruptArtifactError(f"{ref} cannot be computed again: {error.message}", hint=begin_afresh(ref)) from None
    if before is None:
        policy = ctx.one("policy")
        files = {} if begins_adapter(store, policy, config) else state_files(store, policy) or {}
        start = loaded(store, policy, files, config, ctx.seed)
    elif before.fits(config):
        start = before.adopted(store, ctx.one("policy"), config, ALONE)
    else:
        raise StageError(
            f"{ref} was made with another update.dtype, device or optimizer than the update before it, "
            "whose train state is gone",
            hint=begin_afresh(ref),
        )
    with deterministic(wanted=config.deterministic), _threads(num_threads(store, ref)):
        work.take_steps(start, Budget(config.micro_tokens))
    return start


@contextmanager
def _threads(number: int) -> Generator[None]:
    """Compute with as many threads as the update did: sums are taken in another order by another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
