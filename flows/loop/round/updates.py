"""Updates of a round: of the policy, then of each role that is trained, on the rows that it sampled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradus.data.errors import GateError
from gradus.data.lake.store import Ref
from gradus.flows.loop.round.outcomes import Columns, Sampled, tables
from gradus.flows.loop.round.sampling import Round
from gradus.flows.recipe.course.by_round import shaping_config
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.runtime.calls import Outcome

Tables = Mapping[str, list[Ref]]
"""Artifacts by table: rollouts and scores, in a whole round also its plans."""


@dataclass(frozen=True)
class Updates:
    """The updates of one round, with what their batches are made of."""

    round: Round
    whole: Tables
    """Plans, rollouts and scores of all uses."""
    columns: Columns
    last: bool
    """True for the last round, whose train states are kept."""

    def update(self, config: UpdateConfig, inputs: Tables, purpose: str = "train") -> Outcome:
        """Run an update, after the shapes of its batch if it has any."""
        inputs = self.with_batch(config, inputs, purpose)
        return self.round.run("update", config.with_batch, inputs, purpose, {"save": self._save, "may_skip": True})

    def with_batch(self, config: UpdateConfig, inputs: Tables, purpose: str) -> Tables:
        """Return the inputs of an update with the batch that its shapes make, if it has any."""
        if not config.reads_batch:
            return inputs
        shaping = shaping_config(self.round.recipe, config)
        seen = {**self.whole, "problems": self.round.problems, "trackers": self.columns(shaping.tracked)}
        step = self.round.run("shape", shaping, seen, purpose, {"round": self.round.index})
        return {**inputs, "batch": [step.ref]}

    def of_roles(self, made: Sequence[Sampled], begun: Mapping[str, Ref]) -> dict[str, Ref]:
        """Return the models of roles after the round, one without signal as it was; GateError for unjudged rows."""
        found = dict(self.round.memory.roles)
        for name, base in self.round.recipe.roles.items():
            role = self.round.settings(f"roles.{name}", base)
            config, rows = role.learning(name), tables(made, role=name)
            if config is None or not rows["rollouts"]:
                continue
            if unjudged := [each.use for each in made if each.role == name and not each.scores]:
                message = f"the role {name} is trained, and nothing judges what it sampled for the use {unjudged[0]}"
                raise GateError(message, hint=f"add [score.{unjudged[0]}] with rewards to the recipe")
            reference = [begun[name]] if config.loads_reference else []
            step = self.update(config, {**rows, "policy": [found[name]], "reference": reference}, name)
            if not step.summary.get("skipped_updates"):
                found[name] = step.ref
        return found

    @property
    def _save(self) -> str:
        """The time at which train states are written; a worker holds that of one model, so others are read again."""
        if self.last:
            return "now"
        recipe = self.round.recipe
        trained = any(role.update is not None for role in recipe.roles.values())
        return "behind" if trained or self.round.index % recipe.save_state_every == 0 else "never"
