"""Which engine a rollout's settings ask for, warm where this worker has it, and proof that it holds the policy.

Warm: a loaded transformers policy, by digest and number format; a running vLLM, which takes new weights in place.
"""

from pathlib import Path

from data.errors import BadInputError, StageError
from data.store import Ref
from models.engines.base import Engine, EngineError
from models.engines.hf import HfEngine
from models.evidence import proof_of
from models.policy import Policy, PolicyError, PromptSide, load_policy, load_prompt_side
from tasks.config import RolloutConfig
from tasks.context import StageContext

_PROVEN = "proven"
_VLLM = "vllm"


def open_engine(ctx: StageContext, ref: Ref, config: RolloutConfig) -> tuple[Engine, PromptSide | None]:
    """The engine with the weights of a checkpoint, and what prompts need of it; nothing where it takes messages."""
    if config.engine == "transformers":
        policy = warm_policy(ctx, ref, config)
        return HfEngine(policy, batch_rows=config.batch_rows), policy.prompt_side
    ctx.store.verify(ref)
    folder = ctx.store.path(ref)
    text_only = config.engine == "openai" and not config.server.tokens
    try:
        side = None if text_only else load_prompt_side(folder)
        engine = _vllm(ctx, config) if config.engine == "vllm" else _server(config)
        engine.load(folder)
    except PolicyError as error:
        raise BadInputError(str(error), hint="give a folder that transformers can load") from None
    except EngineError as error:
        raise StageError(str(error), hint=error.hint) from None
    return engine, side


def warm_policy(ctx: StageContext, ref: Ref, config: RolloutConfig) -> Policy:
    """The policy of a checkpoint: as a warm worker left it, or loaded; others are let go first.

    StageError where its weights are not those of the files: nothing may be sampled from stale ones.
    """
    key = f"policy/{ref.digest}/{config.dtype}"
    if key not in ctx.warm:
        for stale in [k for k in ctx.warm if k.startswith("policy/")]:
            del ctx.warm[stale]
        ctx.store.verify(ref)
        try:
            policy = load_policy(ctx.store.path(ref), config.dtype)
            _ = policy.end_tokens
        except PolicyError as error:
            raise BadInputError(str(error), hint="give a folder that transformers can load") from None
        ctx.warm[key] = policy
    policy = ctx.warm[key]
    if ctx.warm.get(_PROVEN) != (key, id(policy)):
        _prove(policy, ctx.store.path(ref))
        ctx.warm[_PROVEN] = (key, id(policy))
    return policy


def _prove(policy: Policy, folder: Path) -> None:
    try:
        proof_of(dict(policy.model.state_dict()), folder)
    except ValueError as error:
        raise StageError(
            f"the sampler does not hold the policy's weights: {error}", hint="repeat the command"
        ) from None


def _vllm(ctx: StageContext, config: RolloutConfig) -> Engine:
    from models.engines.vllm import VllmEngine, VllmSettings  # noqa: PLC0415 - an extra, and seconds to import

    settings = VllmSettings(dtype=config.dtype, **config.vllm.model_dump())
    warm = ctx.warm.get(_VLLM)
    if warm is not None and warm[0] == settings:
        return warm[1]
    if warm is not None:
        warm[1].close()
    engine = VllmEngine(settings)
    ctx.warm[_VLLM] = (settings, engine)
    return engine


def _server(config: RolloutConfig) -> Engine:
    from models.engines.server import ServerEngine, ServerSettings  # noqa: PLC0415 - an extra

    return ServerEngine(ServerSettings(**config.server.model_dump()))
