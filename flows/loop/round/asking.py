"""Call the waves of a round or of an evaluation in their order, each until it plans nothing more."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gradus.components.chosen import WaveConfig
from gradus.data.errors import GateError
from gradus.data.lake.store import Ref
from gradus.flows.loop.round.measures import Measures
from gradus.flows.loop.round.outcomes import Sampled, maybe, tables
from gradus.flows.loop.round.sampling import Round
from gradus.flows.recipe.course.by_round import wave_config
from gradus.tasks.config.rollout import PlanningConfig
from gradus.tasks.runtime.calls import Outcome

Room = Callable[[int, str, float], int | None]
"""Function of a round, the purpose of a call of a wave and the tokens of a rollout, which returns the rollouts that a
budget has room for; None if nothing bounds them."""


@dataclass(frozen=True)
class Asking:
    """Calls the waves of a round or of an evaluation; samples and judges their plans."""

    measures: Measures
    known: Mapping[str, list[Ref]]
    """Problems and, if there are any, their difficulty, a policy whose tokens a filter counts, evaluated problems."""
    room: Room | None = None

    def rows(
        self, waves: Iterable[tuple[int, WaveConfig]], plan: Ref, first: Sampled
    ) -> tuple[list[Ref], list[Sampled]]:
        """Return the plans and rollouts of all waves; `plan` and `first` are those of wave 0."""
        now = self.measures.round
        plans, made = [plan], [first]
        for number, wave in waves:
            calls, inputs = 0, {**self.known, "hints": maybe(self.measures.hints) if wave.reads("hint") else []}
            traces = now.start.traces.get(wave.traces)
            inputs["traces"] = maybe(traces)
            settings = wave_config(now.recipe, wave, now.index, now.past)
            inputs |= _stored(settings, now)
            while calls < wave.times or wave.then == "fail":  # beyond its `times` a further plan is an error
                seen = {**inputs, "plan": plans, **tables(made)}
                seen["trackers"] = self.measures.beside(settings.tracked, plans, made, traces)
                facts = {"round": now.index, "wave": number, "call": calls}
                planned = self._planned(wave, settings, seen, facts, made)
                if not _has_planned(wave, planned, now.index, calls):
                    break
                calls += 1
                stored = bool(planned.summary.get("from_stored"))
                parents = [*(each.rollouts for each in made), *inputs["stored_rollouts"]] if stored else []
                made += now.answers(planned, f"{wave.short}{calls}", parents)
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
        now, purpose = self.measures.round, f"{wave.short}{facts['call'] + 1}"
        planned = now.run("wave", settings, inputs, purpose, facts)
        tokens, num_rollouts = sum(each.tokens for each in made), sum(each.num_rollouts for each in made)
        asked = _num_rollouts(planned)
        fits = self.room(now.index, purpose, tokens / num_rollouts) if self.room and tokens and num_rollouts else None
        if fits is None or asked <= fits:
            return planned
        fitting = now.run("wave", settings, inputs, purpose, {**facts, "fits": fits})
        if (kept := _num_rollouts(fitting)) == asked:
            return planned
        less = f"{kept:,} rollouts in place of {asked:,}: no more fit the budget"
        now.session.say(f"round {now.index}: the wave {wave.short} samples {less}")
        return fitting


def _stored(config: PlanningConfig, now: Round) -> dict[str, list[Ref]]:
    """Return rollouts of the last `max_age` rounds on these problems, their scores, and the policy of age 0."""
    if not config.wave.reads("stored"):
        return {"stored_rollouts": []}
    last = now.memory.earlier[max(0, len(now.memory.earlier) - config.max_age) :]
    rounds = [each for each in last if each.problems == now.start.problems]
    return {
        "stored_rollouts": [ref for each in rounds for ref in each.rollouts],
        "stored_scores": [ref for each in rounds for ref in each.scores],
        "sampler": [now.policy],
    }


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
