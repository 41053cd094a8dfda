"""Open the engine of a rollout, warm where this worker has it, and prove that it holds the policy.

Warm: a loaded transformers policy, by digest and number format; a running vLLM, which takes new weights in place.
"""

from typing import TYPE_CHECKING

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
from gradus.tasks.host.processes import Warm

if TYPE_CHECKING:
    from gradus.models.engines.settings import VllmConfig
    from gradus.models.engines.vllm import VllmEngine


class RunningVllm(dict["tuple[VllmConfig, Dtype]", "VllmEngine"]):
    """The one vLLM that a worker keeps running between two jobs, by the settings that it was started with."""


def open_engine(store: Store, warm: Warm, ref: Ref, config: RolloutConfig) -> tuple[Engine, PromptSide | None]:
    """Return the engine with the weights of a checkpoint, and what prompts need of it; None if it takes messages."""
    if config.engine == "transformers":
        policy = warm_policy(store, warm, ref, config)
        return HfEngine(policy, batch_rows=config.batch_rows), policy.prompt_side
    verify_policy(store, ref)
    side = prompt_side(store, ref, config)
    try:
        if config.engine == "vllm":
            engine = _vllm(warm, config)
        else:
            from gradus.models.engines.server import ServerEngine  # noqa: PLC0415 - an extra

            engine = ServerEngine(config.server)
        engine.load(store.path(ref))
    except PolicyError as error:
        raise BadInputError(str(error), hint=WHOLE) from None
    except EngineError as error:
        raise StageError(str(error), hint=error.hint) from None
    return engine, side


def prompt_side(store: Store, ref: Ref, config: RolloutConfig) -> PromptSide | None:
    """Return the parts of a checkpoint that prompts need, without weights; nothing if the engine takes messages."""
    if config.is_text:
        return None
    try:
        return load_prompt_side(store.path(ref))
    except PolicyError as error:
        raise BadInputError(str(error), hint=WHOLE) from None


def warm_policy(store: Store, warm: Warm, ref: Ref, config: RolloutConfig) -> Policy:
    """Return the policy of a checkpoint, kept warm or loaded; other policies are released first.

    Raise StageError if its weights are not those of the files: nothing may be sampled from stale ones.
    """
    key, loaded = PolicyKey(ref.digest, config.dtype, config.device), warm.of(LoadedPolicies)
    if key not in loaded.by_key:
        loaded.clear()
        loaded.by_key[key] = loaded_policy(store, ref, config.dtype, config.device)
    policy = loaded.by_key[key]
    if loaded.verified is None or loaded.verified[0] != key or loaded.verified[1] is not policy:
        folder, held = store.path(ref), dict(policy.model.state_dict())
        try:
            if is_adapter(folder):
                proof_of_merged(held, read_adapter(folder))
            else:
                verify_weights(held, folder)
        except ValueError as error:
            what = f"the sampler does not hold the policy's weights: {error}"
            raise StageError(what, hint="repeat the command") from None
        loaded.verified = (key, policy)
    return policy


def _vllm(warm: Warm, config: RolloutConfig) -> "VllmEngine":
    from gradus.models.engines.vllm import VllmEngine  # noqa: PLC0415 - an extra, and seconds to import

    settings = (config.vllm, config.dtype)
    running = warm.of(RunningVllm)
    if settings not in running:
        for other in running.values():
            other.close()
        running.clear()
        running[settings] = VllmEngine(*settings)
    return running[settings]


def release_accelerator(warm: Warm, config: RolloutConfig) -> None:
    """Free the accelerator for the update after the last rollout; vLLM's share only with `vllm.sleep`."""
    give_back()
    if config.vllm.sleep:
        for engine in warm.of(RunningVllm).values():
            engine.sleep()
