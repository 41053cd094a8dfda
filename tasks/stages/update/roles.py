"""The other models of an update: reference, teacher and critic, loaded if the objective needs them."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import Policy
from gradus.models.training.lora import without_lora
from gradus.models.training.packed.logprobs import Asked, TokenLogprobs, vocabulary
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.steps.critic import Critic
from gradus.models.training.tensor_files import CheckpointError
from gradus.models.training.train_state_files import CRITIC, restore_critic
from gradus.tasks.artifacts.adapters import refers_to_base
from gradus.tasks.artifacts.loading import divided_policy, loaded_policy
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.update.rows import refuse_unknown_tokens

if TYPE_CHECKING:
    from gradus.tasks.stages.update.start import Start
    from gradus.tasks.stages.update.work import Work


def role_columns(work: "Work", start: "Start", budget: Budget) -> dict[str, Tensor]:
    """Return the columns of tokens that the objective needs of other models, each loaded as long as its pass takes."""
    config, found = work.config, dict[str, Tensor | None]()
    if config.needs_reference:
        reference = _reference(work, start, budget)
        found = {"reference.logp": reference.logp, "reference.mean_logp": reference.mean_logp}
    if config.needs_teacher:
        found |= _teacher(work, start, budget)
    if start.critic is not None:
        found["critic.value"] = start.critic.all_values(work.rows, budget, work.on_rows)
    return {name: values for name, values in found.items() if values is not None}


def _reference(work: "Work", start: "Start", budget: Budget) -> TokenLogprobs:
    config, own = work.config, start.train_state
    asked = Asked(mean_logp="reference.mean_logp" in config.needs)
    if config.reference == "ema":
        with own.averaged():
            return all_tokens(own.model, work.rows, budget, work.on_rows, asked)
    given = work.ctx.inputs.get("reference", ())
    if len(given) == 1 and refers_to_base(work.ctx.store, work.ctx.one("policy"), given[0], config):
        with without_lora(own.model):
            return all_tokens(own.model, work.rows, budget, work.on_rows, asked)
    model = _role(work, budget, "reference", "kl_coef is set, or a component reads it").model
    refuse_unknown_tokens(work.table, vocabulary(model))
    return all_tokens(model, work.rows, budget, work.on_rows, asked)


def _role(work: "Work", budget: Budget, role: str, why: str) -> Policy:
    if not work.ctx.inputs.get(role):
        raise BadInputError(f"the objective needs a {role} policy ({why})", hint=f"give --{role}")
    store, ref, dtype = work.ctx.store, work.ctx.one(role), work.config.dtype
    if budget.ranks.mesh is None:
        return loaded_policy(store, ref, dtype, work.config.device)
    return divided_policy(store, ref, dtype, budget.ranks, getattr(torch, dtype))


def _teacher(work: "Work", start: "Start", budget: Budget) -> dict[str, Tensor | None]:
    teacher, own = _role(work, budget, "teacher", "a loss distils from it"), start.policy
    if teacher.tokenizer.get_vocab() != own.tokenizer.get_vocab():
        raise BadInputError(
            f"the teacher {work.ctx.one('teacher')} has another vocabulary than the policy: its tokens are not the "
            "policy's",
            hint="give a teacher with the policy's tokenizer",
        )
    refuse_unknown_tokens(work.table, vocabulary(teacher.model))
    # Embeddings are often padded beyond the vocabulary, to another number in each size of a family.
    known = min(vocabulary(teacher.model), vocabulary(own.model))
    wants_top = bool(work.config.needs & {"teacher.top", "now.top"})
    asked = Asked(top_k=min(work.config.teacher_top_k, known), top_below=known) if wants_top else Asked()
    found = all_tokens(teacher.model, work.rows, budget, work.on_rows, asked)
    return {"teacher.ids": found.top_ids, "teacher.top": found.top_logp, "teacher.logp": found.logp}


def critic_of(
    store: Store, ref: Ref, config: UpdateConfig, policy: Policy, files: Mapping[str, Path], ranks: Ranks
) -> Critic | None:
    """The critic among the files of a checkpoint's train state, or a new one; None if the advantage needs none.

    A new one begins as a float32 copy of the policy. What FSDP2 has divided cannot be copied: ranks read it once more.
    """
    if not config.needs_critic:
        return None
    with ranks.in_turns():
        alone = ranks.mesh is None
        backbone = copy.deepcopy(policy.model) if alone else loaded_policy(store, ref, config.dtype, "cpu").model
        critic = Critic(backbone.float().eval(), config.critic, ranks.mesh)
        if any(name.startswith(CRITIC) for name in files):
            try:
                restore_critic(critic, files)
            except CheckpointError as error:
                raise CorruptArtifactError(
                    f"the policy's critic does not fit: {error}", hint="begin with a policy that has no critic"
                ) from None
    return critic
