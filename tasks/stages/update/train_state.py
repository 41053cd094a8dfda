"""The train state of an update on disk: how it begins from a checkpoint, and the checkpoint that it ends in.

The state that training continues from is an artifact beside it (gradus.data.lake.train_states), which may be left
out where computing it again makes the same bits (gradus.tasks.stages.update.replay).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.manifest import FileEntry
from gradus.data.lake.pruned import POINTER
from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.data.lake.train_states import CHECKPOINT, begin_afresh, pointer, state_identity, weights_config
from gradus.data.lake.whole_files import disk_errors
from gradus.data.seeds import derive_seed
from gradus.models.policy import Policy, saved_dtype
from gradus.models.training.checkpoint import SavedDtype, write_policy
from gradus.models.training.lora import has_lora
from gradus.models.training.optimizers.making import OptimizerError
from gradus.models.training.parallel.ranks import ALONE, Ranks
from gradus.models.training.recomputation import layers_of
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from gradus.models.training.tensor_files import CheckpointError, Collect
from gradus.models.training.train_state_files import OtherOptimizerError, restore_train_state, train_state_files
from gradus.tasks.artifacts.policies import EMA
from gradus.tasks.artifacts.weights import (
    ROOM,
    adapted_policy,
    divided_policy,
    loaded_policy,
    oom_as_stage_error,
    write_adapter,
    written,
)
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.identity.loading import load

_WORK = "policy"


def new_train_state(store: Store, ref: Ref, config: UpdateConfig, seed: int, ranks: Ranks) -> tuple[TrainState, Policy]:
    """Return a checkpoint's policy with a fresh optimiser; BadInputError if it cannot be trained."""
    if config.lora is None:
        policy, weights = _whole_policy(store, ref, config, ranks)
    else:
        policy, weights = adapted_policy(store, ref, config, config.lora, seed, ranks), None
    if config.activation_checkpointing and not layers_of(policy.model):
        raise BadInputError(
            f"{type(policy.model).__name__} has no layers that transformers can compute again",
            hint="leave update.activation_checkpointing out",
        )
    try:
        train_state = TrainState(policy.model, config, derive_seed(seed, "update"), weights, load(config.optimizer))
    except OptimizerError as error:
        raise BadInputError(
            f"update.optimizer: {error}", hint="set update.optimizer to adamw for the usual one"
        ) from None
    return train_state, policy


def _whole_policy(
    store: Store, ref: Ref, config: UpdateConfig, ranks: Ranks
) -> tuple[Policy, Mapping[str, Tensor] | None]:
    """The policy, and the float32 weights that it was rounded from if it computes in another format.

    FSDP2 rounds the weights of ranks as it gathers them.
    """
    saved_in(store, ref, config)  # refuses now what could not be written after the steps
    if ranks.mesh is not None:
        return divided_policy(store, ref, "float32", ranks, getattr(torch, config.dtype)), None
    exact = loaded_policy(store, ref, "float32", config.device)
    if config.dtype == "float32":
        return exact, None
    return loaded_policy(store, ref, config.dtype, config.device), dict(exact.model.named_parameters())


def restore(train_state: TrainState, store: Store, ref: Ref, files: Mapping[str, Path]) -> None:
    """Continue from the files of a checkpoint's train state; BadInputError or CorruptArtifactError if they misfit."""
    fresh = begin_afresh(ref)
    try:
        with oom_as_stage_error("loading the optimiser's state", ROOM):
            restore_train_state(train_state, files, policy_dtype(store.path(ref)))
    except OtherOptimizerError as error:
        raise BadInputError(
            f"cannot continue training from {ref}: {error}", hint=f"set update.optimizer={error.saved}; {fresh}"
        ) from None
    except CheckpointError as error:
        raise CorruptArtifactError(
            f"this version cannot read the training state of {ref}: {error}", hint=fresh
        ) from None


def write_checkpoint(
    out: ShardWriter, policy: Policy, train_state: TrainState, dtype: SavedDtype, *, repeats: bool
) -> None:
    """Write the policy, its average if there is one, and the name of the train state, as files of an artifact.

    `repeats`: whether the same update makes the same bits again.
    """
    with disk_errors(out.folder):
        write_weights(policy, train_state, dtype, out)
    named = pointer(
        out.ref,
        step=train_state.step,
        optimizer=train_state.chosen.label,
        threads=torch.get_num_threads(),
        repeats=repeats,
    )
    out.write_file(POINTER, named)


def write_weights(policy: Policy, train_state: TrainState, dtype: SavedDtype, out: ShardWriter | None) -> None:
    """Write the policy, and its average below EMA; a rank that does not write sends its part to the one that does."""
    scratch = None if out is None else _empty(out.scratch / _WORK)
    lora = has_lora(policy.model)
    # In its own number format the model has the rounded masters.
    rounded = getattr(torch, dtype) == policy.model.dtype and not lora
    parts: dict[str, Mapping[str, Tensor] | None] = {"": None if rounded else train_state.masters}
    if train_state.average:
        parts[f"{EMA}/"] = train_state.average
    for below, weights in parts.items():

        def take(name: str, path: Path, below: str = below) -> None:
            assert out is not None
            out.move_file(f"{below}{name}", path)

        if not lora:
            write_policy(policy, scratch, take, weights, dtype)
        elif scratch is not None and weights is not None:  # an adapter is whole on every rank
            write_adapter(policy, weights, scratch, take, up="../" if below else "")


def write_train_state(
    out: ShardWriter,
    checkpoint: Ref,
    policy_files: Iterable[FileEntry],
    files: Mapping[str, Collect],
    ranks: Ranks = ALONE,
) -> None:
    """Write and commit the train state of a checkpoint that consists of these files of a policy.

    Rank 0 calls it; the others take part by `written`.
    """
    out.list_written(written(files, out.folder, ranks))
    out.commit(
        identity=state_identity(checkpoint),
        config=weights_config(policy_files),
        parents={CHECKPOINT: [str(checkpoint)]},
    )


def state_contents(train_state: TrainState, critic: Critic | None, dtype: SavedDtype) -> dict[str, Collect]:
    """The files of a train state beside a policy that is saved in `dtype`."""
    rounded = dtype != "float32" and not has_lora(train_state.model)  # an adapter's file has its matrices as they are
    return train_state_files(train_state, critic, masters=rounded)


def saved_in(store: Store, ref: Ref, config: UpdateConfig) -> SavedDtype:
    """The number format to save the new policy in."""
    return policy_dtype(store.path(ref)) if config.saved_dtype == "policy" else config.saved_dtype


def policy_dtype(folder: Path) -> SavedDtype:
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
