"""Trainings as a comparison reads them: evaluations on the main suite, and the cost of stages.

A training has what its last command made or reused. Read from journals and the lake; nothing is computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints, ints, one_array, positions, take_or_null
from gradus.data.errors import BadInputError, CorruptArtifactError, OnDamage, UsageError, refuse
from gradus.data.lake.store import Ref, Store
from gradus.tasks.runs.history import Attempt, attempts, brief, missing, of_run
from gradus.tasks.runs.journal import read_settings
from gradus.tasks.runs.spending import ComputedSeconds, is_evaluation, sampled_tokens
from gradus.tasks.runtime.attempt import read_report

EVALUATION = "evaluation"
"""The name that all stages of evaluations are counted under."""
_DONE = ("finished", "reused")


class StageCost(TypedDict):
    """The cost of a stage: completion tokens sampled, seconds."""

    tokens: float
    seconds: float


@dataclass(frozen=True)
class Spent:
    """A stage of a training with what it cost; one that was reused as when it was computed."""

    stage: str
    round: int
    purpose: str
    output: Ref
    tokens: int
    seconds: float

    @property
    def evaluates(self) -> bool:
        """Return whether it serves an evaluation."""
        return is_evaluation(self.purpose)


@dataclass(frozen=True)
class Training:
    """One finished training: its seed, the evaluations of the main suite by round, its costs."""

    run: str
    seed: int
    store: Store
    evaluations: Mapping[int, Ref]
    costs: Mapping[str, StageCost]
    """By stage in order of appearance; the stages of evaluations are one, EVALUATION."""
    tokens_by_round: Mapping[int, int]
    """Completion tokens sampled up to the end of each round, evaluations left out."""
    stages: Sequence[Spent] = ()

    @property
    def rounds(self) -> int:
        """The last round."""
        return max(self.evaluations)

    @property
    def tokens(self) -> int:
        """Completion tokens sampled, evaluations left out."""
        return self.tokens_by_round[self.rounds]

    @property
    def seconds(self) -> float:
        """Seconds of stages, evaluations left out."""
        return sum(cost["seconds"] for stage, cost in self.costs.items() if stage != EVALUATION)


def read_training(store: Store, folder: Path, computed: ComputedSeconds, on_damage: OnDamage = refuse) -> Training:
    """Return a training of a run folder.

    Raise UsageError if it is none, BadInputError if it has no evaluation before its first and after its last round.
    """
    settings = read_settings(folder, on_damage)
    if "recipe" not in settings:
        raise UsageError(f"run {folder.name} is a single `{settings['verb']}`", hint="name trainings (`gradus runs`)")
    standing = brief(folder, on_damage)
    if standing["status"] != "finished":
        why = standing["error"] or f"it is {standing['status']}"
        raise BadInputError(f"run {folder.name} did not finish: {why}", hint=f"continue it: gradus train {folder.name}")
    rows = _last_command(folder, on_damage)
    lost = _lost(store, folder.name, rows, on_damage)
    rows = [row for row in rows if row["output"] not in lost]
    evaluations = {row["round"]: Ref.parse(row["output"]) for row in rows if _evaluates_main(row)}
    last = max((row["round"] for row in rows), default=0)
    if not rows or 0 not in evaluations or last not in evaluations:
        raise BadInputError(
            f"run {folder.name} has no evaluation after its last round",
            hint=f"evaluate it: gradus train {folder.name}",
        )
    costs: dict[str, StageCost] = {}
    by_round = dict.fromkeys(range(last + 1), 0)
    stages = list(_spent(store, rows, computed))
    for each in stages:
        cost = costs.setdefault(EVALUATION if each.evaluates else each.stage, {"tokens": 0, "seconds": 0.0})
        cost["tokens"] += each.tokens
        cost["seconds"] += each.seconds
        by_round[each.round] += 0 if each.evaluates else each.tokens
    so_far = dict(zip(by_round, np.cumsum(list(by_round.values())).tolist(), strict=True))
    return Training(folder.name, settings.get("seed", 0), store, evaluations, costs, so_far, stages)


def _lost(store: Store, run: str, rows: Sequence[Attempt], on_damage: OnDamage) -> set[str]:
    """The artifacts of a training, of those that a comparison reads, which are damaged or missing."""
    found: set[str] = set()
    for row in [row for row in rows if row["stage"] == "rollout" or _evaluates_main(row)]:
        ref = Ref.parse(row["output"])
        try:
            if store.whole(ref) is None:
                raise missing(str(ref), run, "train")
            if row["stage"] == "rollout":
                read_report(store, ref)
            else:
                store.verify(ref)
        except CorruptArtifactError as damage:
            found.add(row["output"])
            on_damage(of_run(damage, store.path(ref), run, "train"))
    return found


def _last_command(folder: Path, on_damage: OnDamage) -> list[Attempt]:
    """The stages that the last command of a run finished or reused."""
    rows = [row for row in attempts(folder, on_damage) if row["status"] in _DONE]
    last = max((row["start"] for row in rows), default=0)
    return [row for row in rows if row["start"] == last]


def _evaluates_main(row: Attempt) -> bool:
    return row["stage"] == "evaluate" and row["purpose"] == "eval"


def _spent(store: Store, rows: Sequence[Attempt], computed: ComputedSeconds) -> Iterator[Spent]:
    """Each stage with its tokens and seconds, those of a reused one as when it was computed."""
    for row in rows:
        output, tokens = Ref.parse(row["output"]), 0
        if row["stage"] == "rollout":
            tokens = sampled_tokens("rollout", read_report(store, output).get("summary", {}))
        seconds = computed.of(row["output"]) if row["status"] == "reused" else row["seconds"]
        yield Spent(row["stage"], row["round"], row["purpose"], output, tokens, seconds)


def problem_ids(training: Training) -> pa.Array:
    """Return the problems of the main suite of a training, (P,)."""
    return one_array(training.store.read(training.evaluations[0], ["problem_id"]).column("problem_id"))


def pass_rates(training: Training, round_index: int, problems: pa.Array) -> Floats:
    """Return the pass rate of each problem (P,) after a round on the main suite; NaN for one without a verdict.

    Raise BadInputError if the evaluation is of other problems.
    """
    n, k = verdicts(training, round_index, problems)
    return np.divide(k, n, out=np.full(len(n), np.nan), where=n > 0)


def verdicts(training: Training, round_index: int, problems: pa.Array) -> tuple[Ints, Ints]:
    """Return how many rollouts of each problem (P,) were judged after a round on the main suite, and correct.

    Raise BadInputError if the evaluation is of other problems.
    """
    table = training.store.read(training.evaluations[round_index], ["problem_id", "n", "k"])
    at = positions(problems, table.column("problem_id"))
    missing = int((at < 0).sum())
    more = table.num_rows - (len(problems) - missing)
    if missing or more:
        raise BadInputError(
            f"run {training.run} was evaluated on other problems: {missing} of {len(problems)} are missing, "
            f"{more} are not among those of the first",
            hint="compare trainings with the same evaluate.problems",
        )
    n, k = (ints(take_or_null(table.column(name), at)) for name in ("n", "k"))
    return n, k
