"""Stage `update`: scored rollouts and the policy that made them become the next policy.

gradus.tasks.stages.update.rows selects the rows, gradus.tasks.stages.update.work takes the steps and reports them,
gradus.models.training.update has the mathematics. This module has the train state from disk or from this worker's
memory (the same bits), and the checkpoint.
"""

import time

import torch

from gradus.data.lake.manifest import POINTER
from gradus.data.lake.schema import ROWS_FILE
from gradus.data.lake.train_states import pointer, state_ref
from gradus.data.lake.whole_files import disk_errors
from gradus.models.training.packed.logprobs import vocabulary
from gradus.models.training.parallel import Ranks
from gradus.models.training.passes import Budget
from gradus.tasks.artifacts.policies import refuse_training
from gradus.tasks.artifacts.weights import LoadedPolicies, begins_adapter, oom_as_stage_error, written
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.processes import fault_point
from gradus.tasks.host.waiting import hold
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.update.launch.supervision import KeptRanks, launched
from gradus.tasks.stages.update.replay import kept_files, makes_the_same_bits
from gradus.tasks.stages.update.rows import refuse_unknown_tokens
from gradus.tasks.stages.update.train_state import (
    KeptTraining,
    Start,
    keep_warm,
    loaded,
    saved_in,
    state_contents,
    write_train_state,
    write_weights,
)
from gradus.tasks.stages.update.work import Work, deterministic, result, skipped, update_table


def run(ctx: StageContext, config: UpdateConfig) -> StageResult:
    """Take the optimiser steps of one update and write the checkpoint that they end in."""
    refuse_training(ctx.store, ctx.one("policy"), config.lora)
    ctx.warm.of(KeptTraining).finish_saving()
    ctx.store.discard(state_ref(ctx.out.ref))  # of an earlier attempt
    if config.launch.num_ranks == 1:
        ctx.warm.of(KeptRanks).take(config)  # ends those of other settings
        return updated(ctx, config, Budget(config.micro_tokens))
    ctx.warm.of(LoadedPolicies).clear()  # the ranks need the memory
    ctx.warm.of(KeptTraining).latest = None
    return launched(ctx, config)


def updated(ctx: StageContext, config: UpdateConfig, budget: Budget, *, saves: bool = True) -> StageResult:
    """Do the same in this process, which may be one of several ranks: all take the steps, and rank 0 reports.

    `saves`: with the train state on disk, unless the run leaves it out.
    """
    started = time.perf_counter()
    work = Work.of(ctx, config)
    work.refuse_uniform()
    if not work.has_signal():
        return skipped(work)
    start = _start(ctx, config, budget.ranks)
    refuse_unknown_tokens(work.table, vocabulary(start.policy.model))
    with (
        oom_as_stage_error(f"updating with {config.micro_tokens} tokens at once", "lower update.micro_tokens"),
        deterministic(wanted=config.deterministic),
    ):
        num_tokens = work.take_steps(start, budget)
    fault_point("update:before_checkpoint")
    dtype, state = saved_in(ctx.store, ctx.one("policy"), config), start.train_state
    if budget.ranks.writes:
        with disk_errors(ctx.out.folder):
            write_weights(start.policy, state, dtype, ctx.out)
        same, threads = makes_the_same_bits(config, state.model.device), torch.get_num_threads()
        optimizer = state.chosen.label
        named = pointer(ctx.out.ref, step=state.step, optimizer=optimizer, threads=threads, repeats=same)
        ctx.out.write_file(POINTER, named)
        ctx.out.write_file(ROWS_FILE, update_table(work))
        if config.between_updates == "host" and budget.ranks.num_ranks == 1:
            start.to_host()  # before the state is written while other stages compute
        if saves:
            _save_state(ctx, config, start, budget.ranks)
    else:
        write_weights(start.policy, state, dtype, None)
        written(state_contents(state, start.critic, dtype), ctx.store.path(state_ref(ctx.out.ref)), budget.ranks)
    keep_warm(ctx, start, config, budget.ranks)
    return result(work, budget, num_tokens, time.perf_counter() - started)


def _start(ctx: StageContext, config: UpdateConfig, ranks: Ranks) -> Start:
    """The policy with its optimiser: as this worker left it, or from disk."""
    ref = ctx.one("policy")
    # Released first: the steps change weights in place, and no later stage may take those for the old policy's.
    ctx.warm.of(LoadedPolicies).clear()
    found = ctx.warm.of(KeptTraining).take(ref)
    if found is not None and found.fits(config):
        return found.adopted(ctx.store, ref, config, ranks)
    files = {} if begins_adapter(ctx.store, ref, config) else kept_files(ctx.store, ref, ctx.beat)
    return loaded(ctx.store, ref, files, config, ctx.seed, ranks)


def _save_state(ctx: StageContext, config: UpdateConfig, start: Start, ranks: Ranks) -> None:
    """Save the state from which the next update continues: at once, while other stages compute, or not at all."""
    same, when = makes_the_same_bits(config, start.train_state.model.device), ctx.facts.get("save", "now")
    if when == "never" and same:
        return
    contents = state_contents(start.train_state, start.critic, saved_in(ctx.store, ctx.one("policy"), config))
    store, ref, files = ctx.store, ctx.out.ref, ctx.out.entries

    def save() -> None:
        own = state_ref(ref)
        with hold(store.path(own), "", lambda text: ctx.beat(1.0, text)):
            write_train_state(store.writer(own), ref, files, contents, ranks)

    if when == "behind" and same:
        ctx.warm.of(KeptTraining).save_behind(save)
    else:
        save()
