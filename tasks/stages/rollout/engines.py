"""Open the engine of a rollout, warm where this worker has it, and prove that it holds the policy.

Warm: a loaded transformers policy, by digest and number format; a running vLLM, which takes new weights in place.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.store import Ref, Store
from gradus.models.adapters import proof_of_merged, read_adapter
from gradus.models.devices import give_back
from gradus.models.engines.base import Engine, EngineError
from gradus.models.engines.hf import HfEngine
from gradus.models.policy import Dtype, Policy, PolicyError, PromptSide, load_prompt_side
from gradus.models.policy_files import WHOLE, is_adapter
from gradus.models.weight_check import verify_weights
from gradus.tasks.artifacts.policies import verify_policy
from gradus.tasks.artifacts.weights import LoadedPolicies, PolicyKey, loaded_policy
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.stages.warm import Warm

if TYPE_CHECKING:
    from gradus.models.engines.server import ServerEngine
    from gradus.models.engines.settings import VllmConfig
    from gradus.models.engines.vllm import VllmEngine


@dataclass
class RunningVllm:
    """The vLLM that a worker keeps running between two jobs, and the settings that it was started with."""

    engine: "VllmEngine | None" = None
    settings: "tuple[VllmConfig, Dtype] | None" = None


class Room(Protocol):
    """Owner of an engine: a stage, or a worker that samples for one."""

    @property
    def store(self) -> Store:
        """The lake that has the checkpoint."""
        ...

    @property
    def warm(self) -> Warm:
        """Objects that stay loaded between two openings."""
        ...


def open_engine(ctx: Room, ref: Ref, config: RolloutConfig) -> tuple[Engine, PromptSide | None]:
    """Return the engine with the weights of a checkpoint, and what prompts need of it; None if it takes messages."""
    if config.engine == "transformers":
        policy = warm_policy(ctx, ref, config)
        return HfEngine(policy, batch_rows=config.batch_rows), policy.prompt_side
    verify_policy(ctx.store, ref)
    side = prompt_side(ctx, ref, config)
    try:
        engine = _vllm(ctx, config) if config.engine == "vllm" else _server(config)
        engine.load(ctx.store.path(ref))
    except PolicyError as error:
        raise BadInputError(str(error), hint=WHOLE) from None
    except EngineError as error:
        raise StageError(str(error), hint=error.hint) from None
    return engine, side


def prompt_side(ctx: Room, ref: Ref, config: RolloutConfig) -> PromptSide | None:
    """Return the parts of a checkpoint that prompts need, without weights; nothing if the engine takes messages."""
    if config.engine == "openai" and not config.server.tokens:
        return None
    try:
        return load_prompt_side(ctx.store.path(ref))
    except PolicyError as error:
        raise BadInputError(str(error), hint=WHOLE) from None


def warm_policy(ctx: Room, ref: Ref, config: RolloutConfig) -> Policy:
    """Return the policy of a checkpoint, kept warm or loaded; other policies are released first.

    Raise StageError if its weights are not those of the files: nothing may be sampled from stale ones.
    """
    key, loaded = PolicyKey(ref.digest, config.dtype, config.device), ctx.warm.of(LoadedPolicies)
    if key not in loaded.by_key:
        loaded.clear()
        loaded.by_key[key] = loaded_policy(ctx.store, ref, config.dtype, config.device)
    policy = loaded.by_key[key]
    if loaded.verified is None or loaded.verified[0] != key or loaded.verified[1] is not policy:
        _prove(policy, ctx.store.path(ref))
        loaded.verified = (key, policy)
    return policy


def _prove(policy: Policy, folder: Path) -> None:
    try:
        held = dict(policy.model.state_dict())
        if is_adapter(folder):
            proof_of_merged(held, read_adapter(folder))
        else:
            verify_weights(held, folder)
    except ValueError as error:
        raise StageError(
            f"the sampler does not hold the policy's weights: {error}", hint="repeat the command"
        ) from None


def _vllm(ctx: Room, config: RolloutConfig) -> "VllmEngine":
    from gradus.models.engines.vllm import VllmEngine  # noqa: PLC0415 - an extra, and seconds to import

    settings = (config.vllm, config.dtype)
    running = ctx.warm.of(RunningVllm)
    if running.engine is not None and running.settings == settings:
        return running.engine
    if running.engine is not None:
        running.engine.close()
    running.engine, running.settings = VllmEngine(*settings), settings
    return running.engine


def release_accelerator(ctx: Room, config: RolloutConfig) -> None:
    """Free the accelerator for the update after the last rollout; vLLM's share only with `vllm.sleep`."""
    give_back()
    engine = ctx.warm.of(RunningVllm).engine
    if engine is not None and config.vllm.sleep:
        engine.sleep()


def _server(config: RolloutConfig) -> "ServerEngine":
    from gradus.models.engines.server import ServerEngine  # noqa: PLC0415 - an extra

    return ServerEngine(config.server)
