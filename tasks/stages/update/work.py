"""The steps of an update one after the other, from where an earlier attempt stood."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gradus.data.errors import GateError, StageError
from gradus.models.training.mismatch import mismatch, num_outside, row_differences
from gradus.models.training.packed.logprobs import Logprobs
from gradus.models.training.passes import Budget, all_logprobs
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.steps.critic_files import critic_files, restore_critic
from gradus.models.training.steps.step import Hooks
from gradus.models.training.steps.step_rows import UpdateError
from gradus.models.training.tensor_files import Collect
from gradus.models.training.update import StepPlan, optimise
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.host.faults import fault_point
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.gates import update_breach
from gradus.tasks.stages.update.given_rows import GivenRows
from gradus.tasks.stages.update.resume_state import Progress, StepMetrics
from gradus.tasks.stages.update.roles import RolePasses
from gradus.tasks.stages.update.start import Start
from gradus.tasks.stages.update.table import RowTable


@dataclass
class Work:
    """One attempt at the steps of an update."""

    ctx: StageContext
    config: UpdateConfig
    settings: UpdateSettings
    start: Start
    given: GivenRows
    kept: Path
    """Folder of the state that a later attempt goes on from."""
    budget: Budget
    mismatch_metrics: dict[str, float] = field(default_factory=dict)
    """How sampler and trainer differ."""
    named: dict[str, str] = field(default_factory=dict)
    """The rows that differ most."""
    steps: list[StepMetrics] = field(default_factory=list)
    """Metrics of the steps taken, by this attempt or by an earlier one."""
    table: RowTable = field(init=False)
    trainer: Logprobs | None = None
    """The policy's log-probs before the first step."""
    _rows_done: int = 0
    _rows_in_all: int = 1

    def __post_init__(self) -> None:
        """Begin with an empty table."""
        self.table = RowTable.of(self.given.rollouts.num_rows)

    def take_steps(self, after_step: Callable[[], None]) -> int:
        """Take every step that no earlier attempt took; return the completion tokens trained on in all of them."""
        plan = StepPlan.of(self.given.rollouts, self.settings, self.start.train_state.rng)
        num_rows = self.given.rollouts.num_rows
        config = self.config
        num_passes = (not plan.on_policy) + config.needs_reference + config.needs_teacher + config.needs_critic
        self._rows_in_all = sum(map(len, plan.steps)) * (1 + config.needs_critic) + num_rows * num_passes
        old = None if plan.on_policy else self._old_logprobs()
        if old is not None:
            self.check_mismatch(old)
        passes = RolePasses(
            self.ctx, config, self.given.rows, self.given.rollouts, self.start.policy, self.budget, self.on_rows
        )
        known = passes.references(old, self.start.train_state, self.start.critic)
        progress = Progress(self.kept, self.start.train_state, self.budget.ranks)
        self._go_on(*progress.restore())
        clock = _Clock()

        def on_step(index: int, metrics: StepMetrics) -> None:
            step_s = clock.lap_s()
            self.steps.append({**metrics, "perf/step_s": step_s})
            after_step()
            every, taken = self.config.save_every_steps, index + 1
            if every and taken % every == 0 and taken < len(plan.steps):
                progress.save(self.steps, {**self.table.state_files(), **self.critic_files()})
            fault_point("update:after_step")
            speed = int(self.given.rollouts.completions.lengths[plan.steps[index]].sum()) / step_s
            self._beat(f"step {taken} of {len(plan.steps)}: {speed:,.0f} tokens/s")

        hooks = Hooks(self.check_mismatch, on_step, self.on_rows, self.table.add)
        taken, budget, critic = tuple(self.steps), self.budget, self.start.critic
        try:
            optimise(
                self.start.train_state,
                self.given.rollouts,
                plan,
                self.settings,
                known,
                hooks,
                taken,
                budget=budget,
                critic=critic,
            )
        except UpdateError as error:
            hint = "lower update.lr, or look at the rollouts and the rewards"
            raise StageError(f"the update was refused: {error}", hint=hint) from None
        return sum(int(self.given.rollouts.completions.lengths[rows].sum()) for rows in plan.steps[: len(self.steps)])

    def check_mismatch(self, trainer: Logprobs) -> None:
        """Gate: refuse rollouts whose recorded log-probs are not those of this policy."""
        self.trainer = trainer
        self.mismatch_metrics = mismatch(self.given.rollouts, trainer)
        if not self.mismatch_metrics:  # no row is the policy's own
            return
        self.named = {"most_mismatched": self._id(row_differences(self.given.rollouts, trainer))}
        if self.mismatch_metrics.get("mismatch/outside_frac"):
            self.named["most_outside"] = self._id(num_outside(self.given.rollouts, trainer))
        sentence = update_breach({"metrics": self.mismatch_metrics, "summary": self.named}, self.config)
        if sentence:
            hint = "the sampler had other weights, another temperature or another tokenizer; roll out again"
            if self.given.rollouts.drawn is None and self.given.rows.drawing() is not None:
                hint = "the rows were sampled with top_p or top_k: update with truncation = masked"
            raise GateError(sentence, hint=hint)
        if self.mismatch_metrics and "mismatch/logp_diff_mean" not in self.mismatch_metrics:
            raise GateError("no token has a finite log-prob of both sampler and trainer", hint="roll out again")

    def _id(self, values: torch.Tensor) -> str:
        """The rollout with the largest of values (N,)."""
        return str(self.given.rows.texts("rollout_id")[int(values.argmax())])

    def on_rows(self, num_rows: int) -> None:
        """Count rows that went through a model."""
        self._rows_done += num_rows
        self._beat(f"{self._rows_done} rows computed")

    def _beat(self, text: str) -> None:
        self.ctx.beat(min(1.0, self._rows_done / self._rows_in_all), text)

    def rows_file(self) -> bytes:
        """The table of rows as a Parquet file."""
        return self.table.parquet(
            self.given.rows, self.given.rollouts, self.trainer, keep_logprobs=self.config.keep_logprobs
        )

    def critic_files(self) -> dict[str, Collect]:
        """Files of the critic by name; none without one."""
        return {} if self.start.critic is None else critic_files(self.start.critic)

    @property
    def memory(self) -> dict[str, float]:
        """How often memory ran out and packs were made half as large; empty if it never did."""
        return {"perf/memory_halvings": float(self.budget.num_halvings)} if self.budget.num_halvings else {}

    def _go_on(self, steps: list[StepMetrics], files: Mapping[str, Path]) -> None:
        """Continue after the steps of an earlier attempt."""
        self.steps = steps
        if steps:
            self.table.restore(files)
            if self.start.critic is not None:
                restore_critic(self.start.critic, files)

    def _old_logprobs(self) -> Logprobs:
        return all_logprobs(self.start.train_state.model, self.given.rollouts, self.budget, self.on_rows)


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap_s(self) -> float:
        """Seconds since the last lap."""
        before, self._last = self._last, time.perf_counter()
        return self._last - before
