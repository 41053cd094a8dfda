"""The train state of an update: from this worker's last one or from disk (the same bits), and as it is left after it.

The state that training continues from is an artifact beside the checkpoint (gradus.data.lake.train_states), which may
be left out where computing it again makes the same bits (gradus.tasks.stages.update.replay).
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

import torch
from torch import Tensor

from gradus.data.errors import BadInputError, CorruptArtifactError, StageError, in_words
from gradus.data.lake.manifest import FileEntry
from gradus.data.lake.store import Ref, ShardWriter, Store
from gradus.data.lake.train_states import CHECKPOINT, begin_afresh, state_identity, weights_config
from gradus.data.seeds import derive_seed
from gradus.models.devices import give_back, to_host
from gradus.models.policy import Policy, saved_dtype
from gradus.models.training.checkpoint import SavedDtype, write_policy
from gradus.models.training.lora import adapter_files, has_lora
from gradus.models.training.optimizers.making import OptimizerError
from gradus.models.training.parallel import ALONE, Ranks
from gradus.models.training.recomputation import layers_of
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from gradus.models.training.tensor_files import CheckpointError, Collect
from gradus.models.training.train_state_files import OtherOptimizerError, restore_train_state, train_state_files
from gradus.tasks.artifacts.policies import EMA
from gradus.tasks.artifacts.weights import (
    ROOM,
    LoadedPolicies,
    PolicyKey,
    adapted_policy,
    divided_policy,
    loaded_policy,
    oom_as_stage_error,
    place,
    written,
)
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.identity.loading import load
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.update.roles import critic_of


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


def write_weights(policy: Policy, train_state: TrainState, dtype: SavedDtype, out: ShardWriter | None) -> None:
    """Write the policy, and its average below EMA; a rank that does not write sends its part to the one that does."""
    scratch = None if out is None else out.scratch / "policy"
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
    lora = has_lora(policy.model)
    # In its own number format the model has the rounded masters.
    rounded = getattr(torch, dtype) == policy.model.dtype and not lora
    parts: dict[str, Mapping[str, Tensor] | None] = {"": None if rounded else train_state.masters}
    if train_state.average:
        parts[f"{EMA}/"] = train_state.average
    for below, weights in parts.items():
        if not lora:
            write_policy(policy, scratch, weights, dtype)
        elif scratch is not None and weights is not None:  # an adapter is whole on every rank
            for name, content in adapter_files(policy.model, weights, up="../" if below else "").items():
                (scratch / name).write_bytes(content)
            policy.tokenizer.save_pretrained(scratch)
        if scratch is not None and out is not None:
            out.move_files(scratch, below)


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
    if found not in get_args(SavedDtype):
        hint = "set update.saved_dtype to float32"
        raise BadInputError(f"{folder} is saved in {found}, which no update writes", hint=hint)
    return cast("SavedDtype", found)


@dataclass(frozen=True)
class Start:
    """A policy in training, and its critic if the advantage needs one."""

    train_state: TrainState
    policy: Policy
    critic: Critic | None
    config: UpdateConfig
    """The settings of the last update from here."""
    away: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Functions that bring its models back to their device, while they lie in the host's memory."""

    def to_host(self) -> None:
        """Move everything that is elsewhere to the host's memory."""
        if self.away:
            return
        state, critic = self.train_state, self.critic
        self.away.append(to_host(state.model, state.optimizer, [state.average]))
        if critic is not None:
            self.away.append(to_host(critic, critic.optimizer))
        give_back()

    def fits(self, config: UpdateConfig) -> bool:
        """Return whether an update with these settings can continue from here."""
        names = ("dtype", "device", "lora", "optimizer")
        return all(getattr(self.config, name) == getattr(config, name) for name in names)

    def adopted(self, store: Store, ref: Ref, config: UpdateConfig, ranks: Ranks) -> "Start":
        """Continue from this checkpoint with other settings, as a state that is read from disk does.

        StageError if the device has no room for what lies in the host's memory.
        """
        with oom_as_stage_error("moving the weights and the optimiser's state back", ROOM):
            while self.away:
                self.away.pop()()
        self.train_state.adopt(config)
        critic = self.critic if config.needs_critic else None
        if critic is not None:
            critic.adopt(config.critic)
        elif config.needs_critic:
            critic = critic_of(store, ref, config, self.policy, {}, ranks)
        return Start(self.train_state, self.policy, critic, config)


def loaded(
    store: Store, ref: Ref, files: Mapping[str, Path], config: UpdateConfig, seed: int, ranks: Ranks = ALONE
) -> Start:
    """Return the state in a checkpoint and the files of its train state; a fresh optimiser without such files.

    BadInputError if its policy cannot be trained.
    """
    weights: Mapping[str, Tensor] | None = None  # the float32 ones of a model that computes in another format
    if config.lora is not None:
        policy = adapted_policy(store, ref, config, config.lora, seed, ranks)
    else:
        saved_in(store, ref, config)  # refuses now what could not be written after the steps
        if ranks.mesh is not None:  # FSDP2 rounds the weights of ranks as it gathers them
            policy = divided_policy(store, ref, "float32", ranks, getattr(torch, config.dtype))
        else:
            policy = loaded_policy(store, ref, "float32", config.device)
            if config.dtype != "float32":
                weights = dict(policy.model.named_parameters())
                policy = loaded_policy(store, ref, config.dtype, config.device)
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
    if files:
        with ranks.in_turns():
            restore(train_state, store, ref, files)
    train_state.adopt(config)
    critic = critic_of(store, ref, config, policy, files, ranks)
    return Start(train_state, policy, critic, config)


@dataclass
class KeptTraining:
    """State of the last update that a worker keeps for the next."""

    digest: str = ""
    """The checkpoint that it ended in."""
    latest: Start | None = None
    saving: "Future[None] | None" = None
    """The train state that is being written meanwhile."""
    writer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))

    def save_behind(self, save: Callable[[], None]) -> None:
        """Have a train state written while other stages compute."""
        self.saving = self.writer.submit(save)

    def finish_saving(self) -> None:
        """Wait until the train state is written; StageError if that failed."""
        saving, self.saving = self.saving, None
        try:
            if saving is not None:
                saving.result()
        except Exception as error:  # noqa: BLE001 - the thread may have met anything
            words = in_words(error)
            raise StageError(f"the last update's train state was not kept: {words.message}", hint=words.hint) from None

    def take(self, ref: Ref) -> Start | None:
        """Hand over the state of the last update if it ended in this checkpoint.

        The steps change weights in place: should they be refused half-way, nothing may take those for the old ones.
        """
        latest, self.latest = self.latest, None
        return latest if self.digest == ref.digest else None


def keep_warm(ctx: StageContext, start: Start, config: UpdateConfig, ranks: Ranks) -> None:
    """Leave the new policy where this worker's next rollout and update find it, as they would on disk."""
    digest, device, dtype = ctx.out.ref.digest, config.device, config.dtype
    if config.between_updates == "disk":
        return
    if config.between_updates == "host":
        start.to_host()
    kept = ctx.warm.of(KeptTraining)
    kept.digest, kept.latest = digest, start
    if config.lora is not None or ranks.num_ranks > 1 or start.policy.model.device.type != place(device).type:
        return  # sampled from whole and merged into its base, where the settings want it: as it is loaded from disk
    saved = saved_in(ctx.store, ctx.one("policy"), config)
    if saved not in ("float32", dtype):
        return  # the weights on disk are rounded otherwise than those in memory
    loaded = ctx.warm.of(LoadedPolicies)
    for name in (dtype, "auto") if dtype == saved else (dtype,):
        loaded.by_key[PolicyKey(digest, name, device)] = start.policy
