"""The training loop: which stage follows which. Reads as the picture in the README."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from gradus.components.chosen import WaveConfig
from gradus.components.settings import Config
from gradus.data.lake.store import Ref
from gradus.data.records import Json, JsonObject
from gradus.flows.loop.by_role import ByRole, asked
from gradus.flows.loop.measuring import Measurements
from gradus.flows.loop.memory import Memory, stored_inputs
from gradus.flows.loop.outcomes import Beginning, Trained
from gradus.flows.loop.room import kept_rounds
from gradus.flows.recipe.ahead import run_concurrently
from gradus.flows.recipe.config import (
    Recipe,
    Recorded,
    curate_config,
    section,
    shaping_config,
    stage_config,
    tracker_config,
    wave_config,
)
from gradus.flows.recipe.guards import Guard, first_outside
from gradus.flows.recipe.suites import Suite
from gradus.tasks.config.curation import CurateConfig
from gradus.tasks.inspect.remarks import skipped_rounds
from gradus.tasks.runtime.calls import Outcome, Stages
from gradus.tasks.stages.registry import stage_spec

C = TypeVar("C", bound=Config)
Ends = Callable[[int], bool]
"""Function that returns whether a training ends after a round; 0 is before the first."""


def train(session: Stages, recipe: Recipe, start: Beginning, ends: Ends | None = None) -> Trained:
    """Profile, build hints, then rounds of curate, rollout, score, update, with evaluations between.

    `ends` replaces the number of rounds of the recipe.
    """
    return _Training(session, recipe, start, ends or (lambda index: index >= recipe.rounds)).run()


@dataclass(frozen=True)
class _State:
    """Inputs of a round: a policy, what is remembered of the rounds before, and the round's rollouts if made ahead."""

    policy: Ref
    memory: Memory
    ahead: "_Gathered | None" = None
    skipped: int = 0
    """Rounds in a row, up to now, whose update was skipped."""


class _Training:
    """One training run: its rounds in order, and the way back after a guard's breach."""

    def __init__(self, session: Stages, recipe: Recipe, start: Beginning, ends: Ends) -> None:
        self._ends = ends
        self._steps = _Steps(session, recipe, start)
        self._measured = Measurements(recipe.evaluate, start.suites, self._evaluate)
        self._states: dict[int, _State] = {}
        self._hints: Ref | None = None
        self._given: _Batch | None = None
        self._remarks = [*start.remarks]
        self._went_back: Counter[str] = Counter()
        self._skipped: list[int] = []

    def run(self) -> Trained:
        """All rounds, up to the one in which a guard ends the run."""
        recipe, start = self._steps.recipe, self._steps.start
        self._measured.take(0, start.policy, last=False)
        state = self._states[0] = _State(start.policy, self._steps.profile(start.policy))
        self._hints = self._steps.hints()
        self._given = self._steps.given()
        self._steps.declared("start", 0, {"problems": [start.problems], "policy": [start.policy]})
        index, over = 0, self._ends(0)
        while not over:
            index += 1
            state, metrics = self._round(index, state)
            found = first_outside(recipe.guards, index, metrics)
            if found and not self._may_go_back(found[0]):
                return self._stopped(found[1], index)
            self._states[index] = state
            over = state.ahead is None and self._ends(index)  # what is made ahead is learned from
            if sentence := self._without_signal(state, index, over=over):
                return self._stopped(sentence, index)
            self._measured.take(index, state.policy, last=over)
            self._make_room()
            if found:
                state = self._back(*found, index)
        choice = self._measured.choice()
        best = choice.round if choice else index
        policies, figures = self._measured.policies, self._measured.figures(best)
        return Trained(
            rounds=index,
            policy=policies[index],
            best=policies[best],
            best_round=best,
            figures=figures,
            choice=choice,
            remarks=(*self._remarks, *skipped_rounds(self._skipped, index)),
            skipped=tuple(self._skipped),
        )

    def _evaluate(self, suite: Suite, policy: Ref, index: int, baseline: Ref | None) -> Outcome:
        """An evaluation with the settings that hold by now."""
        return self._steps.evaluate(suite, policy, index, baseline)

    def _round(self, index: int, state: _State) -> tuple[_State, Mapping[str, float]]:
        """Return the state after a round, and what the round measured.

        A round whose rollouts are outside a guard is not learned from: if all are wrong, no update is possible.
        """
        steps, (policy, memory) = self._steps, (state.policy, state.memory)
        gathered = state.ahead or steps.gather(index, policy, memory, self._hints)
        if first_outside(steps.recipe.guards, index, gathered.metrics):
            return _State(policy, gathered.memory), gathered.metrics
        after = gathered.memory.after(gathered, memory.ended)
        learn = partial(steps.learn, index, policy, memory, gathered, self._given, last=self._ends(index))
        ahead: _Gathered | None = None
        if steps.recipe.overlap and not self._ends(index):
            known = steps.ending(index, after, gathered.metrics)  # not yet by what the update measures
            following = partial(steps.gather, index + 1, policy, known, self._hints)
            learned, ahead = run_concurrently(learn, following, steps.session.halt)
        else:
            learned = learn()
        read = {"problems": [steps.start.problems], "plan": gathered.plans, "policy": [learned.ref]}
        read |= {"rollouts": gathered.rollouts, "scores": gathered.scores}
        read["difficulty"] = _maybe(gathered.memory.difficulty)
        steps.declared("round", index, read)
        metrics: dict[str, float] = {**gathered.metrics, **learned.report.get("metrics", {})}
        after = steps.ending(index, after, metrics)
        if learned.summary.get("skipped_updates"):
            self._skipped.append(index)
            return _State(policy, after, ahead, state.skipped + 1), metrics
        return _State(learned.ref, after, ahead), metrics

    def _without_signal(self, state: _State, index: int, *, over: bool) -> str:
        """Return why rounds without signal end the run after this one; empty if they do not."""
        limit = self._steps.recipe.max_skipped_updates
        if over and len(self._skipped) == index > 0:
            return f"no round had signal: in all {index} every group had rewards without variance"
        if state.skipped >= limit:
            since = f"since round {index - state.skipped + 1}" if state.skipped > 1 else f"in round {index}"
            return f"{since} every group has had rewards without variance (max_skipped_updates = {limit})"
        return ""

    def _make_room(self) -> None:
        """Let checkpoints that the recipe does not keep lose what can be computed again."""
        recipe, made = self._steps.recipe, dict[Ref, int]()
        for index, state in self._states.items():
            if state.policy != self._steps.start.policy:
                made.setdefault(state.policy, index)
        choice = self._measured.choice()
        best = made.get(self._states[choice.round].policy) if choice else None  # made before a round that was skipped
        weights, states = kept_rounds(recipe, made.values(), best)
        self._steps.session.make_room({index: ref for ref, index in made.items()}, weights, states)

    def _may_go_back(self, guard: Guard) -> bool:
        return guard.then == "back" and self._went_back[guard.model_dump_json()] < guard.times

    def _back(self, guard: Guard, sentence: str, index: int) -> _State:
        """Return the state to continue from after a guard's breach: the best so far, with the guard's settings."""
        self._went_back[guard.model_dump_json()] += 1
        best = self._best_before(index)
        self._steps = replace(self._steps, recorded=(*self._steps.recorded, (guard, index)))
        settings = ", ".join(f"{name} = {value}" for name, value in guard.changes.items())
        self._remarks.append(f"{sentence}: went back to the policy of round {best}, and on with {settings}")
        self._steps.session.say(self._remarks[-1])
        return replace(self._states[best], ahead=None)

    def _best_before(self, index: int) -> int:
        """The round of the best policy before a round: by the selection suite, else the round before."""
        choice = self._measured.choice(before=index)
        return choice.round if choice else index - 1

    def _stopped(self, sentence: str, index: int) -> Trained:
        best = self._best_before(index)
        policy = self._states[best].policy
        skipped = tuple(self._skipped)
        return Trained(index, policy, policy, best, {}, None, tuple(self._remarks), sentence, skipped)


@dataclass(frozen=True)
class _Gathered:
    """Plans of a round, what is learned from, what is remembered after it, and the figures of its own rollouts."""

    plans: list[Ref]
    rollouts: list[Ref]
    scores: list[Ref]
    every: Mapping[str, list[Ref]]
    """Plans, rollouts and scores of all uses."""
    memory: Memory
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class _Batch:
    """Rollouts with their scores, and what both stages measured."""

    rollouts: Ref
    scores: Ref
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class _Steps:
    session: Stages
    recipe: Recipe
    start: Beginning
    recorded: Recorded = ()

    def settings(self, stage: str, index: int, base: C) -> C:
        """The settings of a stage in a round, with the changes of guards that it came to."""
        return stage_config(self.recipe, stage, index, base, self.recorded)

    def declared(self, when: str, index: int, given: Mapping[str, list[Ref]]) -> None:
        """Run the stages of installed packages that the recipe has and that run here, on what there is of each role."""
        for name in self.recipe.stages:
            stage, settings = stage_spec(name), section(self.recipe, name)
            if stage.when == when:
                named = {role.name: given.get(role.name, []) for role in stage.roles}
                inputs = {role.name: named[role.name] if role.many else named[role.name][:1] for role in stage.roles}
                self.run(name, settings, inputs, index)

    def run(
        self,
        name: str,
        base: Config,
        inputs: dict[str, list[Ref]],
        index: int,
        purpose: str = "train",
        seed: int | None = None,
        facts: Mapping[str, Json] = {},
    ) -> Outcome:
        """Run one stage with this round's settings; its seed is the run's by default."""
        config = self.settings(name, index, base)
        return self.session.stage(name, config, inputs, round=index, purpose=purpose, seed=seed, facts=facts)

    def profile(self, policy: Ref) -> Memory:
        """Measure the training problems' difficulty under the starting policy, if the recipe has `profile`."""
        begun = Memory(None, self.start.trackers)
        if self.recipe.profile is None:
            return begun
        plan = CurateConfig(sample=self.recipe.profile)
        problems = {"problems": [self.start.problems]}
        planned = self.session.stage("curate", plan, problems, purpose="profile").ref
        batch = self.sample_and_score(planned, [self.start.problems], policy, 0, "profile")
        inputs = {"rollouts": [batch.rollouts], "scores": [batch.scores]}
        return replace(begun, difficulty=self.run("difficulty", self.recipe.difficulty, inputs, 0, "profile").ref)

    def hints(self) -> Ref | None:
        """Build hints for the training problems, if a wave asks for them."""
        if not any(wave.reads_hints for wave in self.recipe.all_waves):
            return None
        return self.run("hint", self.recipe.hint, {"problems": [self.start.problems]}, 0).ref

    def given(self) -> _Batch | None:
        """Worked solutions of the training problems as scored rows, if the recipe has `given`."""
        if self.recipe.given is None:
            return None
        problems = [self.start.problems]
        settings = self.recipe.given.model_copy(update={"prompt": self.recipe.rollout.prompt})
        rows = self.run("given", settings, {"problems": problems, "policy": [self.start.policy]}, 0, "given")
        judged = self.run("score", self.recipe.score, {"rollouts": [rows.ref], "problems": problems}, 0, "given")
        return _Batch(rows.ref, judged.ref, {})

    def gather(self, index: int, policy: Ref, memory: Memory, hints: Ref | None) -> _Gathered:
        """A round up to its update: problems chosen, tried by the policy and scored, then wave after wave."""
        problems = [self.start.problems]
        curate, facts = curate_config(self.recipe, index, self.recorded), {"round": index}
        known = {"problems": problems, "difficulty": _maybe(memory.difficulty)}
        if curate.counts_tokens:
            known["policy"] = [self.start.policy]
        inputs = {**known, "trackers": memory.kept(curate.tracked)}
        plan = self.session.stage("curate", curate, inputs, round=index, facts=facts).ref
        first = self.sample_and_score(plan, problems, policy, index)
        learned = {"rollouts": [first.rollouts], "scores": [first.scores]}
        seen = {"plan": [plan], **learned}
        by_role = ByRole(self.session, self.recipe, self.start.roles, self.run, problems, policy, index, self.recorded)
        for number, wave in memory.going(self.recipe.all_waves):
            calls, inputs = 0, {**known, "hints": _maybe(hints) if wave.reads_hints else []}
            inputs |= stored_inputs(wave_config(self.recipe, wave, index, self.recorded), policy, memory.earlier)
            ask = partial(self.ask, wave, index, number, memory)
            while planned := asked(wave, ask, index, calls, {**inputs, **seen}):
                calls += 1
                stored = bool(planned.summary.get("from_stored"))
                parents = [*seen["rollouts"], *inputs["stored_rollouts"]] if stored else []
                answers = by_role.answers(planned, f"{wave.short}{calls}", parents)
                more = {"plan": [planned.ref], **answers.every}
                seen = {role: [*refs, *more[role]] for role, refs in seen.items()}
                learned = {role: [*refs, *answers.learned[role]] for role, refs in learned.items()}
        judged = {**learned, "difficulty": _maybe(memory.difficulty)}
        measured = self.run("difficulty", self.recipe.difficulty, judged, index, facts=facts).ref
        after = replace(memory, difficulty=measured, trackers=self.tracked(index, {**known, **seen}, memory))
        return _Gathered(seen["plan"], learned["rollouts"], learned["scores"], seen, after, first.metrics)

    def ending(self, index: int, memory: Memory, metrics: Mapping[str, float]) -> Memory:
        """Return the memory of a round without the waves that its metrics end."""
        return memory.ending(self.recipe.all_waves, metrics, f"round {index}", self.session.say)

    def tracked(self, index: int, inputs: Mapping[str, list[Ref]], memory: Memory) -> dict[str, Ref]:
        """Return the rows of each tracker after a round; all see those of the others as they were before it."""
        found: dict[str, Ref] = {}
        for each in self.recipe.trackers:
            name, settings = each.short, tracker_config(self.recipe, each, index, self.recorded)
            own = {"before": _maybe(memory.trackers.get(name)), "trackers": memory.kept(settings.tracked)}
            seen = {**{role: refs for role, refs in inputs.items() if role != "policy"}, **own}
            call = self.session.stage("tracker", settings, seen, round=index, purpose=name, facts={"round": index})
            found[name] = call.ref
        return found

    def ask(
        self,
        wave: WaveConfig,
        index: int,
        number: int,
        memory: Memory,
        calls: int,
        inputs: Mapping[str, list[Ref]],
    ) -> Outcome:
        """Run the stage of a wave after some calls in this round."""
        settings, purpose = wave_config(self.recipe, wave, index, self.recorded), f"{wave.short}{calls + 1}"
        facts: JsonObject = {"round": index, "wave": number, "call": calls}
        seen = {**inputs, "trackers": memory.kept(settings.tracked)}
        return self.session.stage("wave", settings, seen, round=index, purpose=purpose, facts=facts)

    def learn(
        self, index: int, policy: Ref, memory: Memory, gathered: _Gathered, given: _Batch | None, *, last: bool = False
    ) -> Outcome:
        """A round's update; its train state is written in every `save_state_every`-th round and in the last."""
        rollouts, scores = [*gathered.rollouts], [*gathered.scores]
        if given is not None:
            rollouts.append(given.rollouts)
            scores.append(given.scores)
        learned = {"rollouts": rollouts, "scores": scores, "policy": [policy]}
        config = self.settings("update", index, self.recipe.update)
        if config.needs_teacher:
            learned["teacher"] = _maybe(self.start.teacher)
        if config.loads_reference:
            learned["reference"] = [self.start.policy]
        kept = index % self.recipe.save_state_every == 0
        save = "now" if last else "behind" if kept else "never"
        if config.reads_batch:
            shaping, given_too = shaping_config(self.recipe, config), [] if given is None else [given]
            shaped = {**gathered.every, "problems": [self.start.problems], "trackers": memory.kept(shaping.tracked)}
            shaped["rollouts"] = [*shaped["rollouts"], *(each.rollouts for each in given_too)]
            shaped["scores"] = [*shaped["scores"], *(each.scores for each in given_too)]
            step = self.session.stage("shape", shaping, shaped, round=index, facts={"round": index})
            learned["batch"] = [step.ref]
        facts: JsonObject = {"save": save, "may_skip": True}
        return self.session.stage("update", config.with_batch, learned, round=index, facts=facts)

    def evaluate(self, suite: Suite, policy: Ref, index: int, baseline: Ref | None) -> Outcome:
        """The policy on a suite, with the same seeds every time, beside the evaluation of the starting policy."""
        problems, seed, purpose = self.start.suites[suite.name], suite.seed, self.recipe.evaluate.purpose(suite)
        plan = CurateConfig(sample=suite.sample)
        planned = self.session.stage(
            "curate", plan, {"problems": [problems]}, round=index, purpose=purpose, seed=seed
        ).ref
        batch = self.sample_and_score(planned, [problems], policy, index, purpose, suite)
        inputs = {"problems": [problems], "rollouts": [batch.rollouts], "scores": [batch.scores]}
        inputs["baseline"] = _maybe(baseline)
        return self.run("evaluate", suite.report, inputs, index, purpose, seed, {"suite": suite.name})

    def sample_and_score(
        self,
        plan: Ref,
        problems: list[Ref],
        policy: Ref,
        index: int,
        purpose: str = "train",
        suite: Suite | None = None,
        parents: Sequence[Ref] = (),
    ) -> _Batch:
        """Rollouts of a plan and their scores; prompted, judged and seeded as in training unless a suite says more."""
        # Seeds do not depend on the round, so that two policies are evaluated with the same ones.
        apart = purpose == "profile" or purpose.startswith("eval")
        facts: JsonObject = {} if apart else {"round": index}
        rollout, score, seed = self.recipe.rollout, self.recipe.score, None
        if suite is not None:
            rollout, score, seed = suite.rollout(rollout), suite.score or score, suite.seed
        inputs = {"plan": [plan], "problems": problems, "policy": [policy], "parents": [*parents]}
        sampled = self.run("rollout", rollout, inputs, index, purpose, seed, facts)
        given = {"rollouts": [sampled.ref], "problems": problems}
        judged = self.run("score", score, given, index, purpose, seed)
        metrics: dict[str, float] = {**sampled.report.get("metrics", {}), **judged.report.get("metrics", {})}
        return _Batch(sampled.ref, judged.ref, metrics)


def _maybe(ref: Ref | None) -> list[Ref]:
    return [ref] if ref else []
