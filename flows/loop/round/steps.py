"""The stages of one round in their order, with the settings of the round; the README has a picture."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from gradus.components.chosen import WaveConfig
from gradus.data.curation.uses import LEARN
from gradus.data.lake.store import Ref
from gradus.flows.loop.round.asking import Asking, Room
from gradus.flows.loop.round.measures import Known, Measures
from gradus.flows.loop.round.outcomes import Beginning, Columns, Gathered, Memory, maybe, tables
from gradus.flows.loop.round.sampling import Round
from gradus.flows.loop.round.updates import Updates
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import curate_config, hint_config, section, stage_config, tracker_config
from gradus.flows.recipe.course.past import NOTHING, Past
from gradus.flows.recipe.course.phases import recipe_of_phase
from gradus.tasks.config.curation import CurateConfig
from gradus.tasks.runtime.calls import Call, Outcome, Stages
from gradus.tasks.stages.registry import stage_spec


@dataclass(frozen=True)
class Steps:
    """The stages of a training with the settings of its round or phase."""

    session: Stages
    recipe: Recipe
    start: Beginning
    past: Past = NOTHING
    first: int = 0
    """The first round of its phase; 0 for the first phase."""
    read: frozenset[str] = frozenset()
    """Metrics of rounds that anything in the recipe follows."""
    room: Room | None = None
    """Rollouts that waves may still draw."""
    hinted: Ref | None = None
    known: Known = field(default_factory=dict[tuple[str, Ref, Ref | None, Ref, str], Ref])

    def of_phase(self, place: int, first: int) -> "Steps":
        """The steps of a phase that begins with a round."""
        if not self.recipe.phase:
            return self
        problems = self.start.phases[place]
        hints = self.start.hints if problems == self.start.problems else None
        start = replace(self.start, problems=problems, hints=hints)
        recipe = recipe_of_phase(self.recipe, place, first)
        return replace(self, recipe=recipe, start=start, first=first if place else 0)

    def prepared(self) -> "Steps":
        """Return the steps with the hints of all rounds."""
        return replace(self, hinted=None if self._hints_by_round else self.hints(self.first))

    @property
    def _hints_by_round(self) -> bool:
        return hint_config(self.recipe, self.first, self.past).reads_rounds

    def round(self, index: int, policy: Ref, memory: Memory) -> Round:
        """Return a round, none of whose stages has run."""
        return Round(self.session, self.recipe, self.start, policy, memory, index, self.past)

    def declared(self, when: str, index: int, given: Mapping[str, list[Ref]]) -> None:
        """Run the recipe's stages of installed packages that belong here, on the inputs that exist."""
        for name in self.recipe.stages:
            stage, settings = stage_spec(name), section(self.recipe, name)
            if stage.when == when:
                named = {role.name: given.get(role.name, []) for role in stage.roles}
                inputs = {role.name: named[role.name] if role.many else named[role.name][:1] for role in stage.roles}
                config = stage_config(self.recipe, name, index, settings, self.past)
                self.session.stage(Call(name, config, inputs, round=index))

    def begin(self) -> Memory:
        """Return the memory before the first round; a difficulty that the run begins with replaces a profile."""
        start = self.start
        begun = Memory(start.difficulty, start.trackers, start.roles, start.earlier)
        return begun if start.difficulty else self.profile(0, start.policy, begun)

    def profile(self, index: int, policy: Ref, memory: Memory) -> Memory:
        """Return the memory with the difficulty of the problems under a policy, if the recipe or phase has `profile`.

        It is added to the table as those of rounds are: pass rates become this policy's, histories keep earlier ones.
        """
        if self.recipe.profile is None:
            return replace(memory, profiled=self.first)
        now = self.round(index, policy, memory)
        plan = now.run("curate", CurateConfig(sample=self.recipe.profile), {"problems": now.problems}, "profile").ref
        inputs = {**tables([now.sampled(plan, "profile")]), "difficulty": maybe(memory.difficulty)}
        config, facts = now.settings("difficulty", self.recipe.difficulty), {"round": index} if index else {}
        measured = now.run("difficulty", config, inputs, "profile", facts).ref
        return replace(memory, difficulty=measured, profiled=self.first)

    def hints(self, index: int, measures: Measures | None = None) -> Ref | None:
        """Build hints for the training problems, if anything asks for them and the run does not begin with some.

        A strategy that reads what rounds measure is asked anew in every round, with the measures of the round.
        """
        if self.start.hints or not (self.recipe.reads_hints or self.start.asks_hints):
            return self.start.hints
        settings, inputs = hint_config(self.recipe, index, self.past), {"problems": [self.start.problems]}
        if measures is not None:
            inputs["difficulty"] = maybe(measures.round.memory.difficulty)
            inputs["trackers"] = measures.beside(settings.tracked)
        return self.session.stage(Call("hint", settings, inputs, round=index)).ref

    def gather(self, index: int, policy: Ref, memory: Memory) -> Gathered:
        """Run a round up to its update: choose problems, sample and score, then wave after wave.

        Problems are profiled before the first round of a phase, and again after a guard went back before it.
        """
        if memory.profiled < self.first:
            memory = self.profile(index, policy, memory)
        now, facts = self.round(index, policy, memory), {"round": index}
        curate = curate_config(self.recipe, index, self.past)
        known = {"problems": now.problems, "difficulty": maybe(memory.difficulty)}
        if curate.counts_tokens:
            known["policy"] = [self.start.policy]
        if curate.knows_evaluated:
            known["evaluated"] = [*dict.fromkeys(self.start.suites.values())]
        measures = Measures(now, self.known)
        hinted = self.hints(index, measures) if self._hints_by_round else self.hinted
        measures = replace(measures, hints=hinted)
        inputs = {**known, "trackers": measures.beside(curate.tracked)}
        if curate.shows_hints or self.start.asks_hints:
            inputs["hints"] = maybe(hinted)
        if self.start.plan:
            inputs["plan"] = [self.start.plan]
        plan = now.run("curate", curate, inputs, facts=facts).ref
        first = now.sampled(plan)
        plans, made = Asking(measures, known, self.room).rows(self.waves(index), plan, first)
        judged = {**tables(made, use=LEARN), "difficulty": maybe(memory.difficulty)}
        measured = now.run("difficulty", now.settings("difficulty", self.recipe.difficulty), judged, facts=facts).ref
        columns = partial(measures.beside, plans=plans, made=made)
        seen = {**known, "plan": plans, **tables(made)}
        trackers, means = self.tracked(now, seen, columns)
        after = replace(memory, difficulty=measured, trackers=trackers)
        return Gathered(plans, made, after, {**first.metrics, **means}, self.start.problems, columns)

    def waves(self, index: int) -> Iterator[tuple[int, WaveConfig]]:
        """Yield the waves of a round with their numbers from 1: those that it has, and that no metric has ended."""
        recorded = [self.past.known(each, self.recipe.overlap) for each in (index - 1, index)]
        before, known = ([each.metrics for each in rounds] for rounds in recorded)
        for number, wave in enumerate(self.recipe.all_waves, start=1):
            end = wave.until
            if end is not None and end.was_met(known, begun := self.past.begun.get(end.metric)):
                if not end.was_met(before, begun):
                    self.session.say(f"{end}: round {index} and those after it have no wave {wave.short}")
            elif index >= wave.from_round:
                yield number, wave

    def tracked(
        self, now: Round, inputs: Mapping[str, list[Ref]], columns: Columns
    ) -> tuple[dict[str, Ref], dict[str, float]]:
        """Return each tracker's rows after a round, all from those before it, and the means that anything follows."""
        found: dict[str, Ref] = {}
        means: dict[str, float] = {}
        for each in self.recipe.trackers:
            name, settings = each.short, tracker_config(self.recipe, each, now.index, self.past)
            followed = tuple(sorted(column for column in self.read if column.startswith(f"{name}.")))
            settings = settings.model_copy(update={"means": followed})
            own = {"before": maybe(now.memory.trackers.get(name)), "trackers": columns(settings.tracked)}
            seen = {**{role: refs for role, refs in inputs.items() if role != "policy"}, **own}
            call = now.run("tracker", settings, seen, name, {"round": now.index})
            found[name] = call.ref
            means |= {column: value for column, value in call.report.get("metrics", {}).items() if column in followed}
        return found, means

    def learn(
        self, index: int, policy: Ref, memory: Memory, gathered: Gathered, *, last: bool = False
    ) -> tuple[Outcome, Mapping[str, Ref]]:
        """Return a round's update, and the models of the roles after it."""
        learned, now = {**tables(gathered.made, use=LEARN), "policy": [policy]}, self.round(index, policy, memory)
        config = now.settings("update", self.recipe.update)
        if config.needs_teacher:
            learned["teacher"] = maybe(self.start.teacher)
        if config.teachers:
            learned["teachers"] = [memory.roles.get(name, policy) for name in config.teachers]
        if config.loads_reference:
            held_to = self.recipe.reference.round_of(index, self.first)
            learned["reference"] = [memory.policy_after(held_to, policy)]
        whole = {"plan": gathered.plans, **tables(gathered.made)}
        updates = Updates(now, whole, gathered.columns, last)
        return updates.update(config, learned), updates.of_roles(gathered.made, self.start.roles)
