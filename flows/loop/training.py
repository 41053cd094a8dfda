"""The training loop: the order of the stages, as in the picture in the README."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from gradus.data.curation.uses import LEARN
from gradus.data.lake.store import Ref
from gradus.flows.loop.measuring import Measurements
from gradus.flows.loop.round.asking import Asking, Room
from gradus.flows.loop.round.measures import Measures
from gradus.flows.loop.round.outcomes import Beginning, Gathered, Memory, State, Stored, Trained, maybe, tables
from gradus.flows.loop.round.sampling import Round
from gradus.flows.loop.round.steps import Steps
from gradus.flows.recipe.ahead import run_concurrently
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.by_round import recipe_of_suite, suite_shaping
from gradus.flows.recipe.course.past import NOTHING
from gradus.flows.recipe.course.phases import phase_of
from gradus.flows.recipe.guards import Guard, first_outside
from gradus.flows.recipe.reading import metrics_read
from gradus.flows.recipe.suites import Suite
from gradus.tasks.inspect.remarks import skipped_rounds
from gradus.tasks.runtime.calls import Call, Outcome, Stages

Ends = Callable[[int], bool]
"""Function that returns whether a training ends after a round; 0 is before the first."""


def train(
    session: Stages, recipe: Recipe, start: Beginning, ends: Ends | None = None, room: Room | None = None
) -> Trained:
    """Profile, build hints, then rounds of curate, rollout, score, update, with evaluations between.

    `ends` replaces the number of rounds of the recipe; what waves draw fits the `room` of a budget.
    """
    return _Training(session, recipe, start, ends or (lambda index: index >= recipe.rounds), room).run()


class _Training:
    """One training run: its rounds in order, and the way back after a guard's breach."""

    def __init__(self, session: Stages, recipe: Recipe, start: Beginning, ends: Ends, room: Room | None) -> None:
        self._ends = ends
        read = frozenset(metric for metric, _ in metrics_read(recipe))
        self._steps = Steps(session, recipe, start, read=read, room=room)
        self._measured = Measurements(recipe.evaluate, start.suites, self._evaluate)
        self._states: dict[int, State] = {}
        self._phases: dict[int, Steps] = {}
        self._remarks = [*start.remarks]
        self._went_back: Counter[str] = Counter()
        self._skipped: list[int] = []

    def run(self) -> Trained:
        """Run all rounds, up to the one in which a guard ends the run."""
        recipe, start = self._steps.recipe, self._steps.start
        self._evaluated(0, start.policy, last=False)
        state = self._states[0] = State(start.policy, self._steps.of_phase(0, 1).begin())
        self._in(1)
        self._steps.declared("start", 0, {"problems": [start.problems], "policy": [start.policy]})
        index, over = 0, self._is_over(0)
        while not over:
            index += 1
            state, metrics = self._round(index, state)
            found = first_outside(recipe.guards, index, metrics)
            if found and not self._may_go_back(found[0]):
                return self._stopped(found[1], index)
            self._states[index] = state
            over = state.ahead is None and self._is_over(index)  # a round that was made ahead is used
            if sentence := self._without_signal(state, index, over=over):
                return self._stopped(sentence, index)
            evaluated = self._evaluated(index, state.policy, last=over)
            found = found or first_outside(recipe.guards, index, evaluated)
            if found and not self._may_go_back(found[0]):
                return self._stopped(found[1], index)
            over = over or (state.ahead is None and self._is_over(index))  # an evaluation may end the last phase
            self._measured.take(index, state.policy, last=over)
            self._make_room()
            if found:
                state = self._back(*found, index)
        if sentence := self._without_signal(state, index, over=True):
            return self._stopped(sentence, index)
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
            roles={name: ref for name, ref in state.memory.roles.items() if ref != start.roles[name]},
        )

    def _evaluate(self, suite: Suite, policy: Ref, index: int, baseline: Ref | None) -> Outcome:
        """Evaluate with the current overrides; phases and schedules do not apply."""
        state = self._states.get(index)
        roles = self._steps.start.roles if state is None else state.memory.roles
        return evaluate(self._steps, suite, policy, index, baseline, roles)

    def _in(self, index: int) -> Steps:
        """The steps of a round, with the settings, problems and hints of its phase."""
        recipe, past = self._steps.recipe, self._steps.past
        place, first = phase_of(recipe, index, past) or (len(recipe.phase) - 1, index)
        if place not in self._phases:
            self._phases[place] = self._steps.of_phase(place, first).prepared()
            if place:
                self._remarks.append(f"phase {place + 1} of {len(recipe.phase)} began with round {first}")
                self._steps.session.say(self._remarks[-1])
        return replace(self._phases[place], past=past)

    def _is_over(self, index: int) -> bool:
        """Return whether a round is the last, as far as figures are recorded."""
        return self._ends(index) or phase_of(self._steps.recipe, index + 1, self._steps.past) is None

    def _evaluated(self, index: int, policy: Ref, *, last: bool) -> Mapping[str, float]:
        """Evaluate a round's policy on the suites that are due, and return and record their metrics."""
        self._measured.take(index, policy, last=last)
        metrics = self._read(self._measured.recorded(index))
        self._steps = replace(self._steps, past=self._steps.past.evaluated(metrics))
        return metrics

    def _record(self, gathered: Gathered, metrics: Mapping[str, float], steps: int = 0) -> None:
        tokens = sum(each.tokens for each in gathered.made)
        past = self._steps.past.after(tokens, self._read(metrics), steps)
        self._steps = replace(self._steps, past=past)

    def _read(self, metrics: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in metrics.items() if name in self._steps.read}

    def _round(self, index: int, state: State) -> tuple[State, Mapping[str, float]]:
        """Return the state after a round, and what the round measured.

        A round whose rollouts are outside a guard is not learned from: if all are wrong, no update is possible.
        """
        steps, (policy, memory) = self._in(index), (state.policy, state.memory)
        gathered = state.ahead or steps.gather(index, policy, memory)
        if first_outside(steps.recipe.guards, index, gathered.metrics):
            self._record(gathered, gathered.metrics)
            undone = replace(gathered.memory, roles=memory.roles, policies=memory.policies)
            return State(policy, undone), gathered.metrics
        learned_from = tables(gathered.made, use=LEARN)
        earlier = (*gathered.memory.earlier, Stored(**learned_from, problems=gathered.problems))
        after = replace(gathered.memory, earlier=earlier)
        learn = partial(steps.learn, index, policy, memory, gathered, last=self._is_over(index))
        ahead: Gathered | None = None
        if steps.recipe.overlap and not self._is_over(index):
            following = partial(self._in(index + 1).gather, index + 1, policy, after)
            (learned, roles), ahead = run_concurrently(learn, following, steps.session.halt)
        else:
            learned, roles = learn()
        newest = policy if learned.summary.get("skipped_updates") else learned.ref
        after = replace(after, roles=roles, policies=memory.with_policy(index, policy, newest).policies)
        read = {"problems": [steps.start.problems], "plan": gathered.plans, "policy": [learned.ref]}
        read |= {**learned_from, "difficulty": maybe(gathered.memory.difficulty)}
        steps.declared("round", index, read)
        metrics: dict[str, float] = {**gathered.metrics, **learned.report.get("metrics", {})}
        self._record(gathered, metrics, learned.summary.get("updates", 0))
        if learned.summary.get("skipped_updates"):
            self._skipped.append(index)
            return State(newest, after, ahead, state.skipped + 1), metrics
        return State(newest, after, ahead), metrics

    def _without_signal(self, state: State, index: int, *, over: bool) -> str:
        """Return why rounds without signal end the run after this one; empty if they do not."""
        limit = self._steps.recipe.max_skipped_updates
        if over and len(self._skipped) == index > 0:
            return f"no round had signal: in all {index} every group had rewards without variance"
        if state.skipped >= limit:
            since = f"since round {index - state.skipped + 1}" if state.skipped > 1 else f"in round {index}"
            return f"{since} every group has had rewards without variance (max_skipped_updates = {limit})"
        return ""

    def _make_room(self) -> None:
        """Prune the checkpoints that the recipe does not keep."""
        recipe, choice = self._steps.recipe, self._measured.choice()
        policies = {index: state.policy for index, state in self._states.items()}
        trained = [name for name, role in recipe.roles.items() if role.update is not None]
        held_to = self._held_to() if recipe.keep is not None else set[Ref]()
        of_roles = [{index: state.memory.roles[name] for index, state in self._states.items()} for name in trained]
        for models in (policies, *of_roles):
            made = made_by_round(models)
            chosen = models[choice.round] if choice else None  # made before a round that was skipped
            best = next((index for index, ref in made.items() if ref == chosen), None)
            weights, states = kept_rounds(recipe, made, best)
            weights |= {index for index, ref in made.items() if ref in held_to}
            self._steps.session.make_room(made, weights, states)

    def _held_to(self) -> set[Ref]:
        """Return the policies that later rounds of the phase are held to."""
        index, first = max(self._states), self._phases[max(self._phases)].first
        later = self._steps.recipe.reference.rounds_after(index, first)
        return {self._states[each].policy for each in later if each in self._states}

    def _may_go_back(self, guard: Guard) -> bool:
        return guard.then == "back" and self._went_back[guard.model_dump_json()] < guard.times

    def _back(self, guard: Guard, sentence: str, index: int) -> State:
        """Return the state to continue from after a guard's breach: the best so far, with the guard's settings."""
        self._went_back[guard.model_dump_json()] += 1
        best = self._best_before(index)
        self._steps = replace(self._steps, past=self._steps.past.outside(guard, index))
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


def made_by_round(models: Mapping[int, Ref]) -> dict[int, Ref]:
    """Return the checkpoints that a run made, by round; `models` are those after every round, from the beginning on."""
    first: dict[Ref, int] = {}
    for index, ref in models.items():
        first.setdefault(ref, index)  # a round that was skipped made none
    return {index: ref for ref, index in first.items() if ref != models[0]}


def kept_rounds(recipe: Recipe, rounds: Iterable[int], best: int | None) -> tuple[set[int], set[int]]:
    """Return the rounds whose checkpoints keep their weights, and those that keep their train states.

    The newest train state that was saved stays, and the weights that it belongs to, so that a killed run
    continues from there.
    """
    known = sorted(rounds)
    saved = [index for index in known if index % recipe.save_state_every == 0]
    newest = {*known[-1:], *saved[-1:]}
    goes_back = {best} if best is not None and any(guard.then == "back" for guard in recipe.guards) else set[int]()
    if recipe.keep is None:
        return set(known), {*newest, *saved, *goes_back}
    landmarks = recipe.keep.landmarks(known)
    weights = {*recipe.keep.weights(known, best), *newest, *goes_back}
    return weights, {*newest, *goes_back, *(landmarks & set(saved))}


def evaluate(
    steps: Steps, suite: Suite, policy: Ref, index: int, baseline: Ref | None, roles: Mapping[str, Ref]
) -> Outcome:
    """Return the evaluation of a round's policy on a suite, with the same seeds every time.

    `baseline` is that of the starting policy; `roles` are the models of roles after the round.
    """
    recipe = recipe_of_suite(steps.recipe, suite, steps.past)
    start = replace(steps.start, problems=steps.start.suites[suite.name], traces={})
    memory, purpose = Memory(roles=roles), steps.recipe.evaluate.purpose(suite)
    now = _OfSuite(steps.session, recipe, start, policy, memory, index, NOTHING, suite, purpose)
    known, measures = {"problems": now.problems}, Measures(now, steps.known)
    plan = now.run("curate", recipe.curate, known).ref
    plans, made = Asking(measures, known).rows(enumerate(suite.waves, start=1), plan, now.sampled(plan))
    inputs = {**known, **tables(made, use=LEARN), "baseline": maybe(baseline)}
    if suite.is_shaped:
        shaping = suite_shaping(suite)
        seen = {**known, "plan": plans, **tables(made), "trackers": measures.beside(shaping.tracked, plans, made)}
        inputs["batch"] = [now.run("shape", shaping, seen).ref]
    return now.run("evaluate", now.settings("evaluate", suite.report), inputs, facts={"suite": suite.name})


@dataclass(frozen=True)
class _OfSuite(Round):
    """Runs the stages of an evaluation under its name, with the seed of its suite, independent of the round.

    Purposes are `eval` or `eval-SUITE` and, of waves and measures, `eval-SUITE-rethink1`.
    """

    suite: Suite
    purpose: str
    """The purpose of the stages that every evaluation has."""

    def adapted(self, call: Call) -> Call:
        """Return a call with the purpose and the seed of the evaluation, and without the round."""
        purpose = self.purpose if call.purpose == "train" else f"eval-{self.suite.name}-{call.purpose}"
        facts = {key: fact for key, fact in call.facts.items() if key != "round"}
        return replace(call, purpose=purpose, facts=facts, seed=self.suite.seed)
