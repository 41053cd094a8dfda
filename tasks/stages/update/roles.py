"""The other models of an update: reference, teachers and critic, loaded if the objective needs them."""

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from gradus.data.errors import BadInputError, CorruptArtifactError
from gradus.data.lake.store import Ref, Store
from gradus.models.objectives.rows import Rows
from gradus.models.policy import Policy
from gradus.models.training.lora import without_lora
from gradus.models.training.packed.logprobs import Asked, TokenLogprobs, vocabulary
from gradus.models.training.parallel import Ranks
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.steps.critic import Critic
from gradus.models.training.tensor_files import CheckpointError
from gradus.models.training.train_state_files import CRITIC, restore_critic
from gradus.tasks.artifacts.weights import divided_policy, loaded_policy, refers_to_base
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.update.rows import having, refuse_unknown_tokens

if TYPE_CHECKING:
    from gradus.tasks.stages.update.train_state import Start
    from gradus.tasks.stages.update.work import Work


def role_columns(work: "Work", start: "Start", budget: Budget) -> dict[str, Tensor]:
    """Return the columns of tokens that the objective needs of other models, each loaded as long as its pass takes."""
    config, found = work.config, dict[str, Tensor | None]()
    if config.needs_reference:
        reference = _reference(work, start, budget)
        found = {"reference.logp": reference.logp, "reference.mean_logp": reference.mean_logp}
    if config.needs_teacher:
        found |= _taught(work, start, budget)
    if start.critic is not None:
        found["critic.value"] = start.critic.all_values(work.rows, budget, work.on_rows)
    return {name: values for name, values in found.items() if values is not None}


def _reference(work: "Work", start: "Start", budget: Budget) -> TokenLogprobs:
    config, own = work.config, start.train_state
    asked = Asked(mean_logp="reference.mean_logp" in config.needs)
    given, model, held_as = work.ctx.inputs.get("reference", ()), own.model, nullcontext()
    if config.reference == "ema":
        held_as = own.averaged()
    elif not given:
        raise _lacking("reference", "kl_coef is set, or a component reads it")
    elif len(given) == 1 and refers_to_base(work.ctx.store, work.ctx.one("policy"), given[0], config):
        held_as = without_lora(own.model)
    else:
        model = _loaded(work, budget, work.ctx.one("reference")).model
        refuse_unknown_tokens(work.table, vocabulary(model))
    with held_as:
        return all_tokens(model, work.rows, budget, work.on_rows, asked)


def _lacking(role: str, why: str) -> BadInputError:
    return BadInputError(f"the objective needs a {role} policy ({why})", hint=f"give --{role}")


def _loaded(work: "Work", budget: Budget, ref: Ref) -> Policy:
    store, dtype = work.ctx.store, work.config.dtype
    if budget.ranks.mesh is None:
        return loaded_policy(store, ref, dtype, work.config.device)
    return divided_policy(store, ref, dtype, budget.ranks, getattr(torch, dtype))


def _taught(work: "Work", start: "Start", budget: Budget) -> dict[str, Tensor | None]:
    """Return what each row's teacher says of its tokens; every teacher is asked of its own rows alone."""
    found: dict[str, Tensor] = {}
    for ref, own in teachers_of(work):
        if len(own) == work.rows.num_rows:
            return _teacher(work, start, budget, ref, work.rows)
        asked, at = _teacher(work, start, budget, ref, work.rows.select(own)), work.rows.places(own)
        for name, values in asked.items():
            if values is None:
                continue
            whole = found.setdefault(name, values.new_zeros(len(work.rows.row), *values.shape[1:]))
            if whole.shape[1:] != values.shape[1:]:
                raise BadInputError(
                    f"the teachers have vocabularies of {whole.shape[1]} and {values.shape[1]} tokens",
                    hint="lower update.teacher_top_k to the smaller one",
                )
            whole[at] = values
    return dict(found)


def teachers_of(work: "Work") -> list[tuple[Ref, Tensor]]:
    """Return each teacher with the rows that it teaches, by number; BadInputError for a row without one."""
    config, table, inputs = work.config, work.table, work.ctx.inputs
    named, usual = inputs.get("teachers", ()), inputs.get("teacher", ())
    if len(named) != len(config.teachers):
        raise BadInputError(
            f"update.teachers has {len(config.teachers)} roles, and {len(named)} policies are given",
            hint="give --teachers for each, in that order",
        )
    left, found = np.ones(table.num_rows, dtype=np.bool_), list[tuple[Ref, Tensor]]()
    for ref, (name, rows) in zip(named, config.teachers.items(), strict=True):
        own = left & having(table, rows, f"update.teachers.{name}")
        found.append((ref, torch.from_numpy(np.flatnonzero(own))))
        left &= ~own
    if left.any() and not usual:
        if not config.teachers:
            raise _lacking("teacher", "a loss distils from it")
        row = table.column("rollout_id")[int(np.argmax(left))].as_py()
        raise BadInputError(
            f"rollout {row} is of none of update.teachers", hint="name its rows there, or set teacher for all others"
        )
    found += [(ref, torch.from_numpy(np.flatnonzero(left))) for ref in usual]
    return [(ref, own) for ref, own in found if len(own)]


def _teacher(work: "Work", start: "Start", budget: Budget, ref: Ref, rows: Rows) -> dict[str, Tensor | None]:
    teacher, own = _loaded(work, budget, ref), start.policy
    if teacher.tokenizer.get_vocab() != own.tokenizer.get_vocab():
        raise BadInputError(
            f"the teacher {ref} has another vocabulary than the policy: its tokens are not the policy's",
            hint="give a teacher with the policy's tokenizer",
        )
    refuse_unknown_tokens(work.table, vocabulary(teacher.model))
    # Embeddings are often padded beyond the vocabulary, to another number in each size of a family.
    known = min(vocabulary(teacher.model), vocabulary(own.model))
    wants_top = bool(work.config.needs & {"teacher.top", "now.top"})
    asked = Asked(top_k=min(work.config.teacher_top_k, known), top_below=known) if wants_top else Asked()
    found = all_tokens(teacher.model, rows, budget, work.on_rows, asked)
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
