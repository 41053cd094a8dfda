"""The train state of an update: from disk or from this worker's memory (the same bits), and its checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from gradus.data.errors import CorruptArtifactError
from gradus.data.seeds import derive_seed
from gradus.models.devices import Device
from gradus.models.policy import Policy
from gradus.models.training.checkpoint import (
    STATE,
    TRAIN_STATE_FILES,
    CheckpointError,
    restore_train_state,
    train_state_bytes,
    write_policy,
)
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.state import TrainState
from gradus.tasks.artifacts.loading import ROOM, LoadedPolicies, PolicyKey, loaded_policy, oom_as_stage_error
from gradus.tasks.stages.context import StageContext

_WORK = "policy"


@dataclass(frozen=True)
class Trained:
    """A checkpoint that this worker has just made: its digest, device, train state and policy."""

    digest: str
    device: Device
    train_state: TrainState
    policy: Policy


@dataclass
class KeptTraining:
    """What a worker keeps of the last update for the next."""

    latest: Trained | None = None


def train_state_of(ctx: StageContext, settings: UpdateSettings, device: Device) -> tuple[TrainState, Policy]:
    """The policy in float32 with its optimiser: as this worker left it, or from disk.

    Whatever the worker keeps loaded is let go first: the steps change weights in place, and should they be refused
    half-way, no later stage may take those weights for the old policy's.
    """
    ref = ctx.one("policy")
    ctx.warm.of(LoadedPolicies).clear()
    kept = ctx.warm.of(KeptTraining)
    found, kept.latest = kept.latest, None
    if found is not None and (found.digest, found.device) == (ref.digest, device):
        found.train_state.adopt(settings)
        return found.train_state, found.policy
    policy = loaded_policy(ctx.store, ref, "float32", device)
    train_state = TrainState.new(policy.model, settings, derive_seed(ctx.seed, "update"))
    folder = ctx.store.path(ref)
    if (folder / STATE).exists():
        _restore(train_state, folder)
    return train_state, policy


def _restore(train_state: TrainState, folder: Path) -> None:
    try:
        with oom_as_stage_error("loading the optimiser's state", ROOM):
            restore_train_state(train_state, {name: (folder / name).read_bytes() for name in TRAIN_STATE_FILES})
    except (FileNotFoundError, CheckpointError) as error:
        raise CorruptArtifactError(
            f"{folder} is not a checkpoint that this version can go on from: {error}",
            hint=f"give a policy without {STATE} to begin with a fresh optimiser",
        ) from None


def write_checkpoint(ctx: StageContext, policy: Policy, train_state: TrainState) -> None:
    """Write the policy, then the train state, as files of the stage's output."""
    write_policy(policy, _empty(ctx.out.scratch / _WORK), ctx.out.write_file)
    for name, content in train_state_bytes(train_state).items():
        ctx.out.write_file(name, content)


def keep_warm(ctx: StageContext, policy: Policy, train_state: TrainState, device: Device) -> None:
    """Leave the new policy where this worker's next rollout and update find it, as they would on disk."""
    digest = ctx.out.ref.digest
    ctx.warm.of(KeptTraining).latest = Trained(digest, device, train_state, policy)
    loaded = ctx.warm.of(LoadedPolicies)
    loaded.by_key[PolicyKey(digest, "auto", device)] = policy
    loaded.by_key[PolicyKey(digest, "float32", device)] = policy


def _empty(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    return folder
