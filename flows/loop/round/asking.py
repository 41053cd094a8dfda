"""Call the waves of a round or of an evaluation in their order, each until it plans nothing more."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gradus.components.chosen import WaveConfig
from gradus.data.errors import GateError
from gradus.data.lake.store import Ref
from gradus.flows.loop.round.by_role import ByRole, Sampled, tables
from gradus.flows.loop.round.measures import Measures
from gradus.flows.loop.round.memory import Rounds, maybe, stored_inputs
from gradus.flows.recipe.course.by_round import wave_config
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.runtime.calls import Call, Outcome

Room = Callable[[int, str, float], int | None]
"""Function of a round, the purpose of a call of a wave and the tokens of a rollout, which returns the rollouts that a
budget has room for; None if nothing bounds them."""


def unbounded(index: int, purpose: str, tokens: float) -> None:
    """Return that nothing bounds the rollouts."""


@dataclass(frozen=True)
class Asking:
    """Calls the waves of a round or of an evaluation; samples and judges their plans."""

    by_role: ByRole
    measures: Measures
    known: Mapping[str, list[Ref]]
    """Problems and, if there are any, their difficulty, a policy whose tokens a filter counts, evaluated problems."""
    hinted: Ref | None = None
    earlier: Rounds = ()
    """The rounds before, whose rollouts waves may take up again."""
    traces: Mapping[str, Ref] = field(default_factory=dict[str, Ref])
    """Texts for waves, by the names of their files."""
    room: Room = unbounded

    def rows(
        self, waves: Iterable[tuple[int, WaveConfig]], plan: Ref, first: Sampled
    ) -> tuple[list[Ref], list[Sampled]]:
        """Return the plans and rollouts of all waves; `plan` and `first` are those of wave 0."""
        by_role = self.by_role
        plans, made = [plan], [first]
        for number, wave in waves:
            calls, inputs = 0, {**self.known, "hints": maybe(self.hinted) if wave.reads_hints else []}
            traces = self.traces.get(wave.traces)
            inputs["traces"] = maybe(traces)
            settings = wave_config(by_role.recipe, wave, by_role.index, by_role.past)
            inputs |= stored_inputs(settings, by_role.policy, self.earlier, by_role.problems[0])
            while calls < wave.times or wave.then == "fail":  # beyond its `times` a further plan is an error
                seen = {**inputs, "plan": plans, **tables(made)}
                seen["trackers"] = self.measures.beside(settings.tracked, plans, made, traces)
                facts = {"round": by_role.index, "wave": number, "call": calls}
                planned = self._planned(wave, settings, seen, facts, made)
                if not _has_planned(wave, planned, by_role.index, calls):
                    break
                calls += 1
                stored = bool(planned.summary.get("from_stored"))
                parents = [*(each.rollouts for each in made), *inputs["stored_rollouts"]] if stored else []
                made += by_role.answers(planned, f"{wave.short}{calls}", parents)
                plans = [*plans, planned.ref]
        return plans, made

    def _planned(
        self,
        wave: WaveConfig,
        settings: PlanningConfig,
        inputs: Mapping[str, list[Ref]],
        facts: Mapping[str, int],
        made: Sequence[Sampled],
    ) -> Outcome:
        """Ask a wave; if it plans more rollouts than there is room for, once more with those that fit.

        A rollout costs the mean of those that the round has `made`. What a wave draws is bounded, not what it asks of
        rows that are there. A plan that fits is the same with and without a budget, and so its rollouts are shared.
        """
        planned, index = self._ask(wave, settings, inputs, facts), facts["round"]
        tokens, num_rollouts = sum(each.tokens for each in made), sum(each.num_rollouts for each in made)
        asked, purpose = _num_rollouts(planned), f"{wave.short}{facts['call'] + 1}"
        fits = self.room(index, purpose, tokens / num_rollouts) if tokens and num_rollouts else None
        if fits is None or asked <= fits:
            return planned
        fitting = self._ask(wave, settings, inputs, {**facts, "fits": fits})
        if (kept := _num_rollouts(fitting)) == asked:
            return planned
        less = f"{kept:,} rollouts in place of {asked:,}: no more fit the budget"
        self.by_role.session.say(f"round {index}: the wave {wave.short} samples {less}")
        return fitting

    def _ask(
        self, wave: WaveConfig, settings: PlanningConfig, inputs: Mapping[str, list[Ref]], facts: Mapping[str, int]
    ) -> Outcome:
        """Run the stage of a wave after some calls; `facts` are round, wave and call."""
        purpose, session = f"{wave.short}{facts['call'] + 1}", self.by_role.session
        return session.stage(Call("wave", settings, inputs, round=facts["round"], purpose=purpose, facts=facts))


def _num_rollouts(plan: Outcome) -> int:
    return int(plan.report.get("metrics", {}).get("data/wave_rollouts", 0))


def _has_planned(wave: WaveConfig, step: Outcome, index: int, calls: int) -> bool:
    """Return whether a wave planned rows; GateError if it asks for more after its last call where `then` is fail."""
    if not step.summary.get("groups"):
        return False
    if calls == wave.times:
        reason = step.report.get("samples", [{}])[0].get("reason")
        message = f"the wave {wave.label} asks for more after its {wave.times} calls of round {index}: {reason}"
        raise GateError(message, hint='raise `times`, loosen the filters, or take what there is with then = "learn"')
    return True
