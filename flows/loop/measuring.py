"""The evaluations of a training: the suites that are due, the best checkpoint, the reported figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gradus.data.errors import GateError
from gradus.data.lake.store import Ref
from gradus.flows.console.answers import ChosenCheckpoint, Compared, SuiteFigures
from gradus.flows.recipe.suites import EvaluationPlan, Suite
from gradus.tasks.runs.history import ComputedSeconds, is_evaluation, sampled_tokens
from gradus.tasks.runtime.calls import Outcome

Evaluate = Callable[[Suite, Ref, int, Ref | None], Outcome]
"""Evaluate a policy on a suite after a round, beside the evaluation of the starting policy where there is one."""


@dataclass(frozen=True)
class Choice:
    """Selection of the best checkpoint: on which suite, among which rounds, and the consequence for the figures."""

    suite: str
    round: int
    compared: tuple[tuple[int, float], ...]
    """Round and pass@1 of each checkpoint compared; round 0 is the starting policy."""
    optimistic: tuple[str, ...]
    """Reported suites on whose problems the choice was made."""

    @property
    def how(self) -> str:
        """One line for the registry."""
        rounds = ", ".join(str(index) for index, _ in self.compared)
        return f"best pass@1 on {self.suite} among the checkpoints of rounds {rounds}"

    @property
    def remark(self) -> str:
        """Return the caveat about the figures; empty if no reported figure is concerned."""
        if not self.optimistic:
            return ""
        where = " and ".join(self.optimistic)
        return (
            f"the best checkpoint (round {self.round}) was chosen on {where}, so its figure there is optimistic; "
            "name a suite of other problems in evaluate.select"
        )

    def as_dict(self) -> ChosenCheckpoint:
        """Return it as JSON."""
        compared = [Compared(round=index, pass_at_1=value) for index, value in self.compared]
        return {"suite": self.suite, "round": self.round, "compared": compared, "optimistic": list(self.optimistic)}


@dataclass(frozen=True)
class Measurements:
    """Evaluates checkpoints as a plan says and remembers the outcomes; `problems` are those of each suite by name."""

    plan: EvaluationPlan
    problems: Mapping[str, Ref]
    evaluate: Evaluate
    outcomes: dict[tuple[str, int], Outcome] = field(default_factory=dict[tuple[str, int], Outcome])
    policies: dict[int, Ref] = field(default_factory=dict[int, Ref])

    def take(self, index: int, policy: Ref, *, last: bool) -> None:
        """Evaluate the policy after a round on each suite that is due: always before the first round and at the end."""
        self.policies[index] = policy
        for suite in self.plan.suites:
            if last or not index or (suite.every and index % suite.every == 0):
                self.of(suite, index)

    def recorded(self, index: int) -> dict[str, float]:
        """Return the metrics that the evaluations of a round's policy wrote, if there are any."""
        made = [each for (_, measured), each in self.outcomes.items() if measured == index]
        return {name: value for each in made for name, value in each.report.get("metrics", {}).items()}

    def of(self, suite: Suite, index: int) -> Outcome:
        """The evaluation of a round's policy on a suite, computed unless it was."""
        if (found := self.outcomes.get((suite.name, index))) is None:
            start = self.outcomes.get((suite.name, 0))
            found = self.evaluate(suite, self.policies[index], index, start.ref if start else None)
            pass_at_1(found)  # fail now, not later when checkpoints are compared
            self.outcomes[suite.name, index] = found
        return found

    def choice(self, before: int | None = None) -> Choice | None:
        """Return the earliest checkpoint of the highest pass@1 on the selection suite; None if nothing is compared.

        `before` leaves out a round and those after it.
        """
        suite = self.plan.selection
        measured = sorted(index for name, index in self.outcomes if suite and name == suite.name)
        rounds = [index for index in measured if before is None or index < before]
        if suite is None or len(rounds) < 2:
            return None
        compared = tuple((index, pass_at_1(self.outcomes[suite.name, index])) for index in rounds)
        best = max(compared, key=lambda candidate: (candidate[1], -candidate[0]))[0]
        same = [s.name for s in self.plan.reported if self.problems[s.name] == self.problems[suite.name]]
        return Choice(suite.name, best, compared, tuple(same))

    def figures(self, best: int) -> dict[str, SuiteFigures]:
        """Return the figures of each reported suite; evaluate the best checkpoint if it was not yet."""
        rounds = (0, max(self.policies), best)
        found = {suite.name: [self.of(suite, index).evaluation for index in rounds] for suite in self.plan.reported}
        return {name: {"before": first, "after": last, "best": best} for name, (first, last, best) in found.items()}


def spent(outcomes: Sequence[Outcome], computed: ComputedSeconds) -> tuple[int, float]:
    """Return completion tokens and seconds of stages, evaluations left out; a reused one counts as if computed."""
    own = [each for each in outcomes if not is_evaluation(each.purpose)]
    tokens = sum(sampled_tokens(each.stage, each.summary) for each in own)
    return tokens, sum(computed.of(str(each.ref)) if each.reused else each.seconds for each in own)


def pass_at_1(evaluation: Outcome) -> float:
    """The pass@1 of an evaluation's report; GateError if no problem was judged."""
    figures = evaluation.evaluation
    if (found := figures["pass_at"].get("1")) is None:
        raise GateError(
            f"the evaluation of round {evaluation.round} on {figures['suite']} has no pass@1 "
            f"({figures['judged']} of {figures['rollouts']} rollouts judged), and training chooses its best policy "
            "by it",
            hint="evaluate with a reward that says what is correct",
        )
    return float(found["value"])
