"""The other models of an update: reference, teacher and critic, loaded if the objective needs them."""

from collections.abc import Callable

import torch

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.models.policy import Policy
from gradus.models.training.checkpoint import CheckpointError
from gradus.models.training.packed.logprobs import Asked, Logprobs, vocabulary
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.steps.critic import Critic, CriticSettings
from gradus.models.training.steps.critic_files import CRITIC_FILES, restore_critic
from gradus.models.training.steps.step_rows import ReferenceLogprobs, TeacherTokens
from gradus.tasks.artifacts.loading import loaded_policy
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.update.rows import ScoredRows, refuse_unknown_tokens

OnRows = Callable[[int], None]


def references(
    ctx: StageContext,
    config: UpdateConfig,
    rows: ScoredRows,
    rollouts: Rollouts,
    policy: Policy,
    old: Logprobs | None,
    critic: Critic | None,
    budget: Budget,
    on_rows: OnRows,
) -> ReferenceLogprobs:
    """Compute what the objective needs of other models, each loaded for as long as its pass takes."""
    reference = mean = teacher = None
    if config.needs_reference:
        model = _role(ctx, config, "reference", "kl_coef is set, or a component reads it").model
        refuse_unknown_tokens(rows, vocabulary(model))
        asked = Asked(mean_logp="reference_mean_logp" in config.needs)
        found = all_tokens(model, rollouts, budget, on_rows, asked)
        reference, mean = found.logp, found.mean_logp
    if config.needs_teacher:
        teacher = _teacher(ctx, config, rollouts, policy, budget, on_rows)
    values = None if critic is None else critic.all_values(rollouts, budget, on_rows)
    return ReferenceLogprobs(old, reference, mean, teacher, values)


def _role(ctx: StageContext, config: UpdateConfig, role: str, why: str) -> Policy:
    if not ctx.inputs.get(role):
        raise BadInputError(f"the objective needs a {role} policy ({why})", hint=f"give --{role}")
    return loaded_policy(ctx.store, ctx.one(role), config.dtype, config.device)


def _teacher(
    ctx: StageContext, config: UpdateConfig, rollouts: Rollouts, policy: Policy, budget: Budget, on_rows: OnRows
) -> TeacherTokens:
    teacher = _role(ctx, config, "teacher", "a loss distils from it")
    if teacher.tokenizer.get_vocab() != policy.tokenizer.get_vocab():
        raise BadInputError(
            f"the teacher {ctx.one('teacher')} has another vocabulary than the policy: its tokens are not the policy's",
            hint="give a teacher with the policy's tokenizer",
        )
    k = min(config.teacher_top_k, vocabulary(teacher.model), vocabulary(policy.model))
    found = all_tokens(teacher.model, rollouts, budget, on_rows, Asked(top_k=k))
    if found.top_ids is None or found.top_logp is None:
        raise ValueError("the most likely tokens were not computed")
    return TeacherTokens(found.top_ids, found.top_logp)


def critic_of(ctx: StageContext, config: UpdateConfig, policy: Policy) -> Critic | None:
    """The critic that the policy's checkpoint has, or a new one; None if the advantage needs none."""
    if not config.needs_critic:
        return None
    settings = CriticSettings(**config.critic.model_dump())
    ref = ctx.one("policy")
    critic = Critic.of(policy.model, settings)
    files = {name: content for name in CRITIC_FILES if (content := ctx.store.read_file(ref, name)) is not None}
    if files:
        try:
            restore_critic(critic, files)
        except CheckpointError as error:
            raise CorruptArtifactError(
                f"the critic of {ref} does not fit: {error}", hint="begin with a policy that has no critic"
            ) from None
    torch.nn.Module.to(critic, policy.model.device)
    return critic
