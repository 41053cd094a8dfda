"""The rows that an update is given, as tables and tensors, and whether anything can be learned from them."""

from dataclasses import dataclass
from typing import Any

import torch

from gradus.data.arrays import Bools
from gradus.data.errors import GateError
from gradus.data.metrics import zero_std_groups
from gradus.models.objectives.batch import ScoredBatch
from gradus.models.training.rollouts import Rollouts
from gradus.models.training.settings import UpdateSettings
from gradus.models.training.update import acting_rows
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.context import StageContext
from gradus.tasks.stages.gates import update_breach
from gradus.tasks.stages.update.objective import update_advantage
from gradus.tasks.stages.update.origins import compared_tokens, loss_codes, trained_tokens
from gradus.tasks.stages.update.report import uniform_groups
from gradus.tasks.stages.update.rows import ScoredRows, judged_rows, refuse_truncated

WITHOUT_SIGNAL = "curate problems that are neither always nor never solved, or raise n"


@dataclass(frozen=True)
class GivenRows:
    """The judged rows of an update."""

    rows: ScoredRows
    batch: ScoredBatch
    rollouts: Rollouts
    zero_std: Bools
    """Groups without variance in their rewards."""

    @classmethod
    def of(cls, ctx: StageContext, config: UpdateConfig) -> "GivenRows":
        """Read the rows; BadInputError or GateError if a correction cannot be taken of them."""
        rows = judged_rows(ctx, config)
        if config.correction is not None and config.truncation == "refused":
            refuse_truncated(rows)
        batch = rows.batch()
        zero_std = zero_std_groups(batch.reward.numpy(), batch.group.numpy())
        return cls(rows, batch, _rollouts(rows, batch, config), zero_std)

    def uniform_groups(self) -> dict[str, Any]:
        """Counts of groups without variance."""
        return uniform_groups(self.rows, self.batch, self.zero_std)

    def has_signal(self, config: UpdateConfig, settings: UpdateSettings) -> bool:
        """Return whether a row has a gradient."""
        rollouts = self.rollouts
        learnable = rollouts.completions.lengths > 0
        if settings.step_advantage is not None:
            varied = ~torch.from_numpy(self.zero_std)[rollouts.group]
            # A critic compares across groups.
            learnable &= varied | acting_rows(rollouts, settings) | config.needs_critic
        else:
            learnable &= (rollouts.advantage != 0) | acting_rows(rollouts, settings)
        return bool(learnable.any())

    def refuse_uniform(self, config: UpdateConfig, *, skipped: bool) -> None:
        """Raise GateError if too many groups have no variance, or a skipped update is to be refused."""
        if sentence := update_breach({"summary": {**self.uniform_groups(), "skipped_updates": int(skipped)}}, config):
            raise GateError(sentence, hint=WITHOUT_SIGNAL)


def _rollouts(rows: ScoredRows, batch: ScoredBatch, config: UpdateConfig) -> Rollouts:
    trained, compared = trained_tokens(rows.table), compared_tokens(rows.table)
    return Rollouts(
        prompts=rows.prompts(),
        completions=rows.tokens("completion_tokens"),
        logprobs=rows.logprobs(),
        temperature=rows.temperature(),
        advantage=update_advantage(config, batch),
        group=batch.group,
        reward=batch.reward,
        correct=batch.correct,
        origin=torch.from_numpy(loss_codes(rows.table, config)) if config.origin_losses else None,
        trained=None if trained is None else torch.from_numpy(trained),
        compared=None if compared is None else torch.from_numpy(compared),
        drawn=rows.drawing() if config.truncation == "masked" else None,
    )
