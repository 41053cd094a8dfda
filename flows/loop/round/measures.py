"""Measures of a round: each runs when the first component reads it, and asks its model only of rows that are new."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradus.components.chosen import MeasureConfig
from gradus.data.curation.uses import LEARN, START, TEACHER, split_need
from gradus.data.lake.store import Ref
from gradus.flows.loop.round.by_role import Sampled, tables
from gradus.flows.loop.round.memory import Memory, maybe
from gradus.flows.loop.round.outcomes import Beginning
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import measure_config
from gradus.flows.recipe.course.past import Past
from gradus.tasks.runtime.calls import Call, Stages

Known = dict[tuple[str, Ref, Ref | None, Ref, str], Ref]
"""Measures by name, problems, texts, model and settings: those of a frozen model hold for all rounds."""


@dataclass(frozen=True)
class Measures:
    """The measures of one round, with what they measure."""

    session: Stages
    recipe: Recipe
    start: Beginning
    policy: Ref
    memory: Memory
    """As it was before the round."""
    index: int
    past: Past
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
        columns = [*columns]
        names = {column.partition(".")[0] for column in columns}
        read = [each for each in self.recipe.measures if each.short in names]
        found = [self._of_problems(each) for each in read if each.of_problems]
        found += [self._of_problems(each, traces) for each in read if each.of_traces and traces is not None]
        of_rows = [each for each in read if not (each.of_problems or each.of_traces)]
        found += [ref for each in of_rows for ref in self._of_rows(each, plans, made)]
        return [*self.memory.kept(columns), *found]

    def _of_problems(self, measure: MeasureConfig, traces: Ref | None = None) -> Ref:
        """Return what a measure finds of the problems, or of texts of them: once for each model."""
        settings, model = measure_config(self.recipe, measure, self.index, self.past), self._model(measure)
        key = measure.short, self.start.problems, traces, model, settings.model_dump_json()
        if key not in self.known:
            place = 0 if traces is None else [*dict.fromkeys(self.start.traces.values())].index(traces)
            inputs = {"problems": [self.start.problems], "policy": [model], **({"traces": [traces]} if traces else {})}
            self.known[key] = self._run(measure, inputs, f"{measure.short}-{place + 1}" if place else measure.short)
        return self.known[key]

    def _of_rows(self, measure: MeasureConfig, plans: Sequence[Ref], made: Sequence[Sampled]) -> list[Ref]:
        found = self._rows.setdefault(measure.short, [])
        seen = self._seen.setdefault(measure.short, set())
        new = [each for each in made if each.use == LEARN and each.rollouts not in seen]
        if new:
            model, purpose = self._model(measure), f"{measure.short}-{len(found) + 1}" if found else measure.short
            uses = {split_need(need)[0] for need in measure.needs or ()} - {LEARN}
            said = [each for each in made if each.use in uses]
            inputs = {**tables([*new, *said]), "problems": [self.start.problems], "plan": [*plans], "policy": [model]}
            inputs |= {"sampler": [self.policy]} if model != self.policy else {}
            inputs |= {"hints": maybe(self.hints)} if measure.reads_hints else {}
            found.append(self._run(measure, inputs, purpose))
            seen |= {each.rollouts for each in new}
        return found

    def _run(self, measure: MeasureConfig, inputs: Mapping[str, list[Ref]], purpose: str) -> Ref:
        settings = measure_config(self.recipe, measure, self.index, self.past)
        return self.session.stage(Call("measure", settings, inputs, round=self.index, purpose=purpose)).ref

    def _model(self, measure: MeasureConfig) -> Ref:
        """Return the model that a measure asks; a role of the recipe without a policy of its own is the policy."""
        beside = {START: self.start.policy, TEACHER: self.start.teacher or self.policy}
        named = {**({} if measure.role in self.recipe.roles else beside), **self.memory.roles}
        return named.get(measure.role, self.policy)
