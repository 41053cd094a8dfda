"""The other models of an update: reference, teacher and critic, loaded if the objective needs them."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch
from torch import Tensor

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.store import Ref, Store
from gradus.models.objectives.rows import Rows
from gradus.models.policy import Policy
from gradus.models.training.lora import without_lora
from gradus.models.training.packed.logprobs import Asked, TokenLogprobs, vocabulary
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.passes import Budget, OnRows, all_tokens
from gradus.models.training.state import TrainState
from gradus.models.training.steps.critic import Critic
from gradus.models.training.tensor_files import CheckpointError
from gradus.models.training.train_state_files import CRITIC, restore_critic
from gradus.tasks.artifacts.adapters import refers_to_base
from gradus.tasks.artifacts.loading import divided_policy, loaded_policy
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.update.rows import refuse_unknown_tokens


@dataclass(frozen=True)
class RolePasses:
    """Passes of other models over the rows of an update, each model loaded for as long as its pass takes."""

    ctx: StageContext
    config: UpdateConfig
    table: pa.Table
    rows: Rows
    policy: Policy
    budget: Budget
    on_rows: OnRows

    def columns(self, train_state: TrainState, critic: Critic | None) -> dict[str, Tensor]:
        """Return the columns of tokens that the objective needs of them."""
        found: dict[str, Tensor | None] = {}
        if self.config.needs_reference:
            reference = self._reference(train_state)
            found = {"reference.logp": reference.logp, "reference.mean_logp": reference.mean_logp}
        if self.config.needs_teacher:
            found |= self._teacher()
        if critic is not None:
            found["critic.value"] = critic.all_values(self.rows, self.budget, self.on_rows)
        return {name: values for name, values in found.items() if values is not None}

    def _reference(self, train_state: TrainState) -> TokenLogprobs:
        asked = Asked(mean_logp="reference.mean_logp" in self.config.needs)
        if self.config.reference == "ema":
            with train_state.averaged():
                return all_tokens(train_state.model, self.rows, self.budget, self.on_rows, asked)
        if self._reference_is_base():
            with without_lora(train_state.model):
                return all_tokens(train_state.model, self.rows, self.budget, self.on_rows, asked)
        model = self._role("reference", "kl_coef is set, or a component reads it").model
        refuse_unknown_tokens(self.table, vocabulary(model))
        return all_tokens(model, self.rows, self.budget, self.on_rows, asked)

    def _reference_is_base(self) -> bool:
        given = self.ctx.inputs.get("reference", ())
        return len(given) == 1 and refers_to_base(self.ctx.store, self.ctx.one("policy"), given[0], self.config)

    def _role(self, role: str, why: str) -> Policy:
        if not self.ctx.inputs.get(role):
            raise BadInputError(f"the objective needs a {role} policy ({why})", hint=f"give --{role}")
        store, ref, dtype, mesh = self.ctx.store, self.ctx.one(role), self.config.dtype, self.budget.ranks.mesh
        if mesh is None:
            return loaded_policy(store, ref, dtype, self.config.device)
        return divided_policy(store, ref, dtype, self.budget.ranks, getattr(torch, dtype))

    def _teacher(self) -> dict[str, Tensor | None]:
        teacher = self._role("teacher", "a loss distils from it")
        if teacher.tokenizer.get_vocab() != self.policy.tokenizer.get_vocab():
            raise BadInputError(
                f"the teacher {self.ctx.one('teacher')} has another vocabulary than the policy: its tokens are not the "
                "policy's",
                hint="give a teacher with the policy's tokenizer",
            )
        refuse_unknown_tokens(self.table, vocabulary(teacher.model))
        # Embeddings are often padded beyond the vocabulary, to another number in each size of a family.
        known = min(vocabulary(teacher.model), vocabulary(self.policy.model))
        asked = Asked(top_k=min(self.config.teacher_top_k, known), top_below=known)
        found = all_tokens(teacher.model, self.rows, self.budget, self.on_rows, asked)
        return {"teacher.ids": found.top_ids, "teacher.top": found.top_logp}


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
