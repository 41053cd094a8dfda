"""The train state of an update: from disk or from this worker's memory (the same bits), and its checkpoint."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.data.seeds import derive_seed
from gradus.models.devices import Device
from gradus.models.policy import Dtype, Policy, saved_dtype
from gradus.models.training.checkpoint import (
    AVERAGE,
    MASTERS,
    STATE,
    TRAIN_STATE_FILES,
    CheckpointError,
    OtherOptimizerError,
    SavedDtype,
    average_bytes,
    restore_average,
    restore_train_state,
    restore_weights,
    train_state_bytes,
    weights_bytes,
    write_policy,
)
from gradus.models.training.optimizers.arguments import OptimizerError
from gradus.models.training.recomputation import layers_of
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.state import TrainState
from gradus.tasks.artifacts.loading import ROOM, LoadedPolicies, PolicyKey, loaded_policy, oom_as_stage_error
from gradus.tasks.artifacts.policies import EMA
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.context import StageContext

_WORK = "policy"


@dataclass(frozen=True)
class Trained:
    """A checkpoint that this worker has just made: its digest, number format, device, train state and policy."""

    digest: str
    dtype: Dtype
    device: Device
    train_state: TrainState
    policy: Policy

    def fits(self, ref: Ref, settings: UpdateSettings, config: UpdateConfig) -> bool:
        """Whether an update of this policy continues from here."""
        same = (self.digest, self.dtype, self.device) == (ref.digest, config.dtype, config.device)
        return same and self.train_state.chosen == settings.optimizer


@dataclass
class KeptTraining:
    """What a worker keeps of the last update for the next."""

    latest: Trained | None = None


def train_state_of(ctx: StageContext, settings: UpdateSettings, config: UpdateConfig) -> tuple[TrainState, Policy]:
    """The policy with its optimiser: as this worker left it, or from disk.

    Whatever the worker keeps loaded is let go first: the steps change weights in place, and should they be refused
    half-way, no later stage may take those weights for the old policy's.
    """
    ref = ctx.one("policy")
    ctx.warm.of(LoadedPolicies).clear()
    kept = ctx.warm.of(KeptTraining)
    found, kept.latest = kept.latest, None
    if found is not None and found.fits(ref, settings, config):
        found.train_state.adopt(settings)
        return found.train_state, found.policy
    exact = loaded_policy(ctx.store, ref, "float32", config.device)
    _saved_in(ctx.store, ref, config)  # refuses now what could not be written after the steps
    narrow = config.dtype != "float32"
    policy = loaded_policy(ctx.store, ref, config.dtype, config.device) if narrow else exact
    if config.activation_checkpointing and not layers_of(policy.model):
        raise BadInputError(
            f"{type(policy.model).__name__} has no layers that transformers can compute again",
            hint="leave update.activation_checkpointing out",
        )
    weights = dict(exact.model.named_parameters()) if narrow else None
    try:
        train_state = TrainState.new(policy.model, settings, derive_seed(ctx.seed, "update"), weights)
    except OptimizerError as error:
        raise BadInputError(
            f"update.optimizer: {error}", hint="set update.optimizer to adamw for the usual one"
        ) from None
    if ctx.store.file(ref, STATE) is not None:
        _restore(train_state, ctx.store, ref)
    train_state.adopt(settings)
    return train_state, policy


def _restore(train_state: TrainState, store: Store, ref: Ref) -> None:
    """Continue from the files that the checkpoint's manifest names, whatever else lies beside them."""
    folder = store.path(ref)
    try:
        with oom_as_stage_error("loading the optimiser's state", ROOM):
            files = _state_files(store, ref)
            if MASTERS in files:
                restore_weights(train_state, files[MASTERS], _format(folder))
            restore_train_state(train_state, {name: files[name] for name in TRAIN_STATE_FILES})
            if AVERAGE in files:
                restore_average(train_state, files[AVERAGE])
    except OtherOptimizerError as error:
        raise BadInputError(
            f"{folder} cannot be gone on from: {error}",
            hint=f"set update.optimizer={error.saved}, or give a policy without {STATE} for a fresh optimiser",
        ) from None
    except CheckpointError as error:
        raise CorruptArtifactError(
            f"{folder} is not a checkpoint that this version can go on from: {error}",
            hint=f"give a policy without {STATE} to begin with a fresh optimiser",
        ) from None


def _state_files(store: Store, ref: Ref) -> dict[str, bytes]:
    """The files of a checkpoint's train state; CheckpointError if one that every train state has is missing."""
    names = (MASTERS, AVERAGE, *TRAIN_STATE_FILES)
    files = {name: content for name in names if (content := store.read_file(ref, name)) is not None}
    missing = [name for name in TRAIN_STATE_FILES if name not in files]
    if missing:
        raise CheckpointError(f"{missing[0]} is missing")
    return files


def write_checkpoint(ctx: StageContext, policy: Policy, train_state: TrainState, config: UpdateConfig) -> None:
    """Write the policy, its average if there is one, and the train state, as files of the stage's output."""
    dtype = _saved_in(ctx.store, ctx.one("policy"), config)
    write_policy(policy, _empty(ctx.out.scratch / _WORK), ctx.out.write_file, train_state.masters, dtype)
    if dtype != "float32":
        ctx.out.write_file(MASTERS, weights_bytes(train_state))
    if train_state.average:
        write = partial(_write_below, ctx.out, EMA)
        write_policy(policy, _empty(ctx.out.scratch / _WORK), write, train_state.average, dtype)
        ctx.out.write_file(AVERAGE, average_bytes(train_state))
    for name, content in train_state_bytes(train_state).items():
        ctx.out.write_file(name, content)


def _write_below(out: ShardWriter, folder: str, name: str, content: bytes) -> None:
    out.write_file(f"{folder}/{name}", content)


def keep_warm(ctx: StageContext, policy: Policy, train_state: TrainState, config: UpdateConfig) -> None:
    """Leave the new policy where this worker's next rollout and update find it, as they would on disk."""
    digest, device, dtype = ctx.out.ref.digest, config.device, config.dtype
    ctx.warm.of(KeptTraining).latest = Trained(digest, dtype, device, train_state, policy)
    saved = _saved_in(ctx.store, ctx.one("policy"), config)
    if saved not in ("float32", dtype):
        return  # what is on disk is rounded otherwise than the weights in memory
    loaded = ctx.warm.of(LoadedPolicies)
    for name in (dtype, "auto") if dtype == saved else (dtype,):
        loaded.by_key[PolicyKey(digest, name, device)] = policy


def _saved_in(store: Store, ref: Ref, config: UpdateConfig) -> SavedDtype:
    """The number format to save the new policy in."""
    return _format(store.path(ref)) if config.saved_dtype == "policy" else config.saved_dtype


def _format(folder: Path) -> SavedDtype:
    """The number format that a policy is saved in; BadInputError if no update can save in it."""
    found = saved_dtype(folder)
    for known in get_args(SavedDtype):
        if found == known:
            return known
    raise BadInputError(
        f"{folder} is saved in {found}, which no update writes", hint="set update.saved_dtype to float32"
    )


def _empty(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    return folder
