"""Measures of a round: each runs when the first component reads it, and asks its model only of rows that are new."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gradus.components.chosen import HINT_TEXTS, MeasureConfig
from gradus.data.curation.uses import LEARN, START, TEACHER, split_need
from gradus.data.lake.store import Ref
from gradus.flows.loop.round.outcomes import Sampled, maybe, tables
from gradus.flows.loop.round.sampling import Round
from gradus.flows.recipe.course.by_round import measure_config
from gradus.tasks.config.rounds import MeasuringConfig

Known = dict[tuple[str, Ref, Ref | None, Ref, str], Ref]
"""Measures by name, problems, texts, model and settings: those of a frozen model hold for all rounds."""


@dataclass(frozen=True)
class Measures:
    """The measures of one round, with what they measure."""

    round: Round
    known: Known
    hints: Ref | None = None
    _rows: dict[str, list[Ref]] = field(default_factory=dict[str, list[Ref]])
    _seen: dict[str, set[Ref]] = field(default_factory=dict[str, set[Ref]])

    def beside(
        self, columns: Iterable[str], plans: Sequence[Ref] = (), made: Sequence[Sampled] = (), traces: Ref | None = None
    ) -> list[Ref]:
        """Return the rows of the trackers and measures to which these columns belong, NAME.COLUMN.

        `plans` and `made` are the plans of the round and its rollouts so far, `traces` the texts of a wave.
        """
        names = {column.partition(".")[0] for column in columns}
        kept = [ref for name, ref in self.round.memory.trackers.items() if name in names]
        read = [each for each in self.round.recipe.measures if each.short in names]
        found = [self._of_problems(each) for each in read if each.of_problems]
        found += [self._of_problems(each, traces) for each in read if each.of_traces and traces is not None]
        of_rows = [each for each in read if not (each.of_problems or each.of_traces)]
        found += [ref for each in of_rows for ref in self._of_rows(each, plans, made)]
        return [*kept, *found]

    def _of_problems(self, measure: MeasureConfig, traces: Ref | None = None) -> Ref:
        """Return what a measure finds of the problems, or of texts of them: once for each model."""
        start, settings, model = self.round.start, self._settings(measure), self._model(measure)
        key = measure.short, start.problems, traces, model, settings.model_dump_json()
        if key not in self.known:
            place = 0 if traces is None else [*dict.fromkeys(start.traces.values())].index(traces)
            inputs = {"problems": [start.problems], "policy": [model], "traces": maybe(traces)}
            purpose = f"{measure.short}-{place + 1}" if place else measure.short
            self.known[key] = self.round.run("measure", settings, inputs, purpose).ref
        return self.known[key]

    def _of_rows(self, measure: MeasureConfig, plans: Sequence[Ref], made: Sequence[Sampled]) -> list[Ref]:
        found = self._rows.setdefault(measure.short, [])
        seen = self._seen.setdefault(measure.short, set())
        new = [each for each in made if each.use == LEARN and each.rollouts not in seen]
        if new:
            model, purpose = self._model(measure), f"{measure.short}-{len(found) + 1}" if found else measure.short
            uses = {split_need(need)[0] for need in measure.needs or ()} - {LEARN}
            said = [each for each in made if each.use in uses]
            inputs = {**tables([*new, *said]), "problems": self.round.problems, "plan": [*plans], "policy": [model]}
            inputs |= {"sampler": [self.round.policy]} if model != self.round.policy else {}
            inputs |= {"hints": maybe(self.hints)} if measure.reads(HINT_TEXTS) else {}
            found.append(self.round.run("measure", self._settings(measure), inputs, purpose).ref)
            seen |= {each.rollouts for each in new}
        return found

    def _settings(self, measure: MeasureConfig) -> MeasuringConfig:
        return measure_config(self.round.recipe, measure, self.round.index, self.round.past)

    def _model(self, measure: MeasureConfig) -> Ref:
        """Return the model that a measure asks; a role of the recipe without a policy of its own is the policy."""
        start, policy = self.round.start, self.round.policy
        beside = {START: start.policy, TEACHER: start.teacher or policy}
        named = {**({} if measure.role in self.round.recipe.roles else beside), **self.round.memory.roles}
        return named.get(measure.role, policy)
