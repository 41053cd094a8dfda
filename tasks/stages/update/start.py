"""Initial state of an update, from this worker's last one or from disk (the same bits), and the state kept after it."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gradus.data.errors import StageError, in_words
from gradus.data.lake.store import Ref, Store
from gradus.models.devices import give_back, to_host
from gradus.models.policy import Policy
from gradus.models.training.parallel.ranks import ALONE, Ranks
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from gradus.tasks.artifacts.weights import ROOM, LoadedPolicies, PolicyKey, oom_as_stage_error, place
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.update.roles import critic_of
from gradus.tasks.stages.update.train_state import new_train_state, restore, saved_in


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

    def to_device(self) -> None:
        """Move everything back; StageError if the device has no room."""
        with oom_as_stage_error("moving the weights and the optimiser's state back", ROOM):
            while self.away:
                self.away.pop()()

    def fits(self, config: UpdateConfig) -> bool:
        """Return whether an update with these settings can continue from here."""
        kept = self.config
        same = (kept.dtype, kept.device, kept.lora) == (config.dtype, config.device, config.lora)
        return same and kept.optimizer == config.optimizer

    def adopted(self, store: Store, ref: Ref, config: UpdateConfig, ranks: Ranks) -> "Start":
        """Continue from this checkpoint with other settings, as a state that is read from disk does."""
        self.to_device()
        self.train_state.adopt(config)
        critic = self.critic if config.needs_critic else None
        if critic is not None:
            critic.adopt(config.critic)
        elif config.needs_critic:
            critic = critic_of(store, ref, config, self.policy, {}, ranks)
        return Start(self.train_state, self.policy, critic, config)


def loaded(
    store: Store,
    ref: Ref,
    files: Mapping[str, Path],
    config: UpdateConfig,
    seed: int,
    ranks: Ranks = ALONE,
) -> Start:
    """Return the state in a checkpoint and the files of its train state; a fresh optimiser without such files."""
    train_state, policy = new_train_state(store, ref, config, seed, ranks)
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
