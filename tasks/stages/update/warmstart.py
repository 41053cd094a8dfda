"""Stage `warmstart`: supervised fine-tuning on worked solutions, from a given policy or from random weights."""

import numpy as np
import torch

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.whole_files import disk_errors
from gradus.data.seeds import derive_seed
from gradus.data.worked import needs_answer, worked_text
from gradus.models.policy import Policy, new_policy, prompt_tokens
from gradus.models.rendering import Asked, PromptError, prompt_texts
from gradus.models.templates import PromptConfig
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.training.checkpoint import write_policy
from gradus.models.training.warmstart import Example, example_of, finetune
from gradus.tasks.artifacts.policies import refuse_training
from gradus.tasks.artifacts.weights import loaded_policy, oom_as_stage_error, place
from gradus.tasks.config.curation import worked_columns
from gradus.tasks.config.learning import WarmstartConfig
from gradus.tasks.stages.context import StageContext, StageResult

CONTEXT_TOKENS = 256
"""Context of a new policy."""


def run(ctx: StageContext, config: WarmstartConfig) -> StageResult:
    """Fine-tune on every problem that has a worked solution."""
    policy = _start(ctx, config)
    examples = examples_of(ctx, policy, config.prompt, config.template)

    def on_step(step: int, loss: float) -> None:
        if step % 10 == 0:
            ctx.beat(step / config.steps, f"step {step}: loss {loss:.4f}")

    rng = np.random.default_rng(derive_seed(ctx.seed, "warmstart"))
    try:
        with oom_as_stage_error(f"training on {config.batch_rows} rows at once", "lower warmstart's batch_rows"):
            losses = finetune(policy.model, examples, config, rng, on_step)
    except ValueError as error:
        raise StageError(str(error), hint="lower warmstart's lr") from None
    scratch = ctx.out.scratch / "policy"
    scratch.mkdir(exist_ok=True)
    with disk_errors(ctx.out.folder):
        write_policy(policy, scratch)
        ctx.out.move_files(scratch)
    steps = [{"sft/loss": loss} for loss in losses]
    summary = {"updates": config.steps, "problems": len(examples), "first_loss": losses[0], "last_loss": losses[-1]}
    return StageResult(metrics={"sft/loss": losses[-1]}, summary=summary, steps=steps)


def examples_of(ctx: StageContext, policy: Policy, style: PromptConfig, template: str) -> list[Example]:
    """Prompt and worked solution of every usable problem, as tokens; BadInputError if no problem has one that fits."""
    solved = [
        (row, worked_text(template, row["solution"], row.get("answer_given") or row.get("answer")))
        for row in ctx.table("problems", worked_columns(template)).to_pylist()
        if row["solution"] is not None and (not needs_answer(template) or row["answer"] is not None)
    ]
    asked = [Asked(row["question"], row["messages"]) for row, _ in solved]
    try:
        prompts = prompt_tokens(policy.tokenizer, prompt_texts(policy.tokenizer, asked, style))
    except PromptError as error:
        raise BadInputError(f"problem {solved[error.index][0]['problem_id']} has no prompt: {error}") from None
    found = (example_of(policy.prompt_side, prompt, text) for (_, text), prompt in zip(solved, prompts, strict=True))
    examples = [each for each in found if each is not None]
    if not examples:
        raise BadInputError("no problem has a worked solution that fits the policy", hint="see `gradus ingest`")
    return examples


def _start(ctx: StageContext, config: WarmstartConfig) -> Policy:
    if not ctx.inputs.get("policy"):
        device = place(config.device)
        policy = new_policy(
            tiny_tokenizer(),
            width=config.width,
            layers=config.layers,
            heads=config.heads,
            max_positions=CONTEXT_TOKENS,
            seed=derive_seed(ctx.seed, "weights"),
        )
        torch.nn.Module.to(policy.model, device)
        return policy
    ref = ctx.one("policy")
    refuse_training(ctx.store, ref)
    return loaded_policy(ctx.store, ref, "float32", config.device)
