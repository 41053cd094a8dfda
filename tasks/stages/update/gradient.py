"""Stage `gradient`: an objective's gradient on the rows of a stored round, and a step of it that is taken back.

Nothing is sampled. With a `sampler` the policy is a later one than that which sampled, as in the later steps of a
round: ratios are those of both, so that clips and masks act. The halves of the gradient are a file of the artifact.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save
from torch import Tensor

from gradus.data.arrays import floats, looked_up, nulls, pc
from gradus.data.curation.by_use import of_use
from gradus.data.curation.uses import LEARN
from gradus.data.errors import BadInputError
from gradus.data.lake.schema import HALVES, HALVES_FILE, OWN
from gradus.models.objectives.objective import advantage_column
from gradus.models.objectives.rows import Rows
from gradus.models.training.gradients import Gradient, Moved, half_gradients, moved
from gradus.models.training.learning_rows import learning_rows
from gradus.models.training.packed.forward import form_of
from gradus.models.training.packed.logprobs import vocabulary
from gradus.models.training.passes import Budget, all_tokens
from gradus.models.training.recomputation import recomputed
from gradus.models.training.steps.critic import UpdateError
from gradus.models.training.update import Step, counted_rows
from gradus.tasks.artifacts.weights import loaded_policy, oom_as_stage_error
from gradus.tasks.config.learning import SCORE_COLUMNS, GradientConfig
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.update.roles import role_columns
from gradus.tasks.stages.update.rows import prompts_of, refuse_unknown_tokens, tokens_of
from gradus.tasks.stages.update.train_state import Start, loaded
from gradus.tasks.stages.update.work import Work, deterministic, extreme_samples


class _Known(dict[tuple[object, ...], Tensor]):
    """Log-probs of held-out rows under a policy, which a worker keeps for the next method."""


_HELD = ("rollout_id", "group_id", "prompt_tokens", "trained_prompt_tokens", "completion_tokens", "temperature", "use")


def run(ctx: StageContext, config: GradientConfig) -> StageResult:
    """Compute the gradient, and the change of held-out log-probs by a step along it."""
    work, budget = Work.of(ctx, config), Budget(config.micro_tokens)
    if not work.rows.num_rows:
        raise BadInputError("none of the rows is learned from", hint="take rounds of a run of this method")
    start = loaded(ctx.store, ctx.one("policy"), {}, config, ctx.seed)
    refuse_unknown_tokens(work.table, vocabulary(start.policy.model))
    with (
        oom_as_stage_error(f"computing with {config.micro_tokens} tokens at once", "lower update.micro_tokens"),
        deterministic(wanted=config.deterministic),
    ):
        step = _step(work, start, budget)
        group = step.rows["group"].numpy()
        of_second = np.random.default_rng(ctx.seed).permutation(np.unique(group))[1::2]  # every second group
        with recomputed(start.train_state.model, wanted=config.activation_checkpointing):
            try:
                found = half_gradients(step, torch.from_numpy(np.isin(group, of_second)), config.num_coordinates)
            except UpdateError as error:
                raise BadInputError(f"the gradient cannot be computed: {error}") from None
        held = _held_out(ctx, config)
        change = None
        if held is not None:
            known, state = ctx.warm.of(_Known), start.train_state
            policy = (ctx.one("policy"), config.dtype, config.lora)
            of = (*policy, ctx.inputs["held_rollouts"], config.max_held_out, ctx.seed)
            if of not in known:
                known.clear()
                known[of] = all_tokens(state.model, held, budget).logp
            change = moved(state, config, held, known[of], budget)
    ctx.out.write_file(HALVES_FILE, save(dict(zip(HALVES, found.halves, strict=True))))
    ctx.out.write_table(_table(work, step.rows, found))
    groups = step.rows.by("group").num
    summary = {"rows": step.rows.num_rows, "groups": groups, "dead_groups": groups - len(_live(step.rows, found))}
    return StageResult(_metrics(step.rows, found, change), summary, extreme_samples(work))


def _step(work: Work, start: Start, budget: Budget) -> Step:
    """The one step that takes all rows, as an update begins it."""
    known = role_columns(work, start, budget)
    if work.ctx.inputs.get("sampler"):
        config = work.config
        model = loaded_policy(work.ctx.store, work.ctx.one("sampler"), config.dtype, config.device).model
        known["old.logp"] = all_tokens(model, work.rows, budget).logp
    rows = counted_rows(work.rows.adding(of_tokens=known), work.objective)
    if not bool(rows.mask.any()):
        raise BadInputError("no token has log-probs that are all finite", hint="roll out again")
    form = form_of(start.train_state.model)
    return Step(start.train_state, rows, work.objective, work.config, form, budget, start.critic, work.on_rows)


def _held_out(ctx: StageContext, config: GradientConfig) -> Rows | None:
    """Judged rows that are held out, of as many whole groups as there is room for: the same for every method."""
    if not ctx.inputs.get("held_rollouts"):
        return None
    table = of_use(ctx.table("held_rollouts", _HELD), LEARN)
    table = looked_up(table, "rollout_id", ctx.table("held_scores", SCORE_COLUMNS), ("reward", "correct"))
    unknown = nulls(table.column("reward")) | nulls(table.column("completion_tokens"))
    table = table.filter(pa.array(~unknown))
    if not table.num_rows:
        return None
    names, group, count = np.unique(table.column("group_id").to_numpy(), return_inverse=True, return_counts=True)
    order = np.random.default_rng(ctx.seed).permutation(len(names))
    taken = order[np.cumsum(count[order]) <= max(config.max_held_out, count[order[0]])]
    inside = np.isin(group, taken)
    table = table.filter(pa.array(inside))
    completions = tokens_of(table, "completion_tokens")
    return learning_rows(
        prompts_of(table),
        completions,
        logprobs=torch.full((len(completions.values),), torch.nan),
        temperature=torch.from_numpy(np.nan_to_num(floats(table.column("temperature")).astype(np.float32), nan=1.0)),
        reward=torch.from_numpy(floats(table.column("reward")).copy()),
        correct=torch.from_numpy(floats(table.column("correct").cast(pa.int8())).copy()),
        group=torch.from_numpy(group[inside]),
    )


def _table(work: Work, rows: Rows, found: Gradient) -> pa.Table:
    tokens = found.tokens
    mass = rows.row_sum(tokens.mass.double())
    over = mass.clamp_min(torch.finfo(torch.float64).tiny)
    given = rows[advantage_column(0)]
    advantage = given if len(given) == rows.num_rows else rows.row_mean(given.double())
    columns = {name: work.table.column(name) for name in ("rollout_id", "problem_id", "reward")}
    columns["origin"] = pc.coalesce(work.table.column("origin"), OWN)
    computed = {
        "advantage": advantage,
        "pull": rows.row_sum(tokens.pull.double()),
        "mass": mass,
        "masked_frac": rows.row_sum(torch.where(tokens.masked, tokens.mass, 0.0).double()) / over,
        "clipped_frac": rows.row_sum(torch.where(tokens.clipped, tokens.mass, 0.0).double()) / over,
    }
    return pa.table({**columns, **{name: values.double().numpy() for name, values in computed.items()}})


def _metrics(rows: Rows, found: Gradient, change: Moved | None) -> dict[str, float]:
    tokens, mask = found.tokens, rows.mask
    mass = max(float(tokens.mass[mask].double().sum()), torch.finfo(torch.float64).tiny)
    metrics = {
        "gradient/norm": found.norm,
        "gradient/signal_to_noise": found.signal_to_noise,
        "gradient/half_cosine": found.half_cosine,
        "gradient/tokens_frac": float((tokens.pull[mask] != 0).double().mean()),
        "gradient/masked_frac": float(tokens.mass[mask & tokens.masked].double().sum()) / mass,
        "gradient/clipped_frac": float(tokens.mass[mask & tokens.clipped].double().sum()) / mass,
        "gradient/dead_groups_frac": 1 - len(_live(rows, found)) / max(1, rows.by("group").num),
    }
    if change is not None:
        metrics |= {"gradient/held_out_right": change.right, "gradient/held_out_wrong": change.wrong}
        metrics |= {"gradient/held_out_gain": change.gain}
    return {name: value for name, value in metrics.items() if np.isfinite(value)}


def _live(rows: Rows, found: Gradient) -> Sequence[int]:
    """The groups of which a token is pulled at."""
    pulled = rows.row_sum((found.tokens.pull != 0).double()) > 0
    return rows["group"][pulled].unique().tolist()
