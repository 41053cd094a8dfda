"""Trainings as a comparison reads them: evaluations on the main suite, and the cost of stages.

A training has what its last command made or reused. Read from journals and the lake; nothing is computed.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gradus.data.arrays import Floats, Ints, bools, ints, one_array, positions, take_or_null
from gradus.data.errors import BadInputError, CorruptArtifactError, OnDamage, UsageError, refuse
from gradus.data.lake.store import Ref, Store
from gradus.tasks.runs.history import (
    Attempt,
    ComputedSeconds,
    attempts,
    brief,
    is_evaluation,
    missing,
    of_run,
    sampled_tokens,
)
from gradus.tasks.runs.journal import read_settings
from gradus.tasks.runtime.calls import read_report


class Spent(Attempt):
    """A stage of a training with what it cost; one that was reused as when it was computed."""

    tokens: int


@dataclass(frozen=True)
class Training:
    """One finished training: its seed, the evaluations of the main suite by round, its stages with their costs."""

    run: str
    seed: int
    store: Store
    evaluations: Mapping[int, Ref]
    stages: Sequence[Spent]

    @property
    def rounds(self) -> int:
        """The last round."""
        return max(self.evaluations)

    @property
    def learning(self) -> list[Spent]:
        """Its stages, those of evaluations left out."""
        return [each for each in self.stages if not is_evaluation(each["purpose"])]

    @property
    def tokens(self) -> int:
        """Completion tokens sampled, evaluations left out."""
        return self.tokens_until(self.rounds)

    def tokens_until(self, round_index: int) -> int:
        """Return the completion tokens sampled up to the end of a round, evaluations left out."""
        return sum(each["tokens"] for each in self.learning if each["round"] <= round_index)

    @property
    def seconds(self) -> float:
        """Seconds of stages, evaluations left out."""
        return sum(each["seconds"] for each in self.learning)


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
        raise BadInputError(
            f"run {folder.name} did not finish: {why}", hint=f"continue it: gradus train {shlex.quote(folder.name)}"
        )
    done = [row for row in attempts(folder, on_damage) if row["status"] in ("finished", "reused")]
    last = max((row["start"] for row in done), default=0)
    of_last = [row for row in done if row["start"] == last]
    stages = [spent for row in of_last for spent in _spent(store, folder.name, row, computed, on_damage)]
    evaluations = {row["round"]: Ref.parse(row["output"]) for row in stages if _evaluates_main(row)}
    if not {0, max((row["round"] for row in stages), default=0)} <= set(evaluations):
        raise BadInputError(
            f"run {folder.name} has no evaluation after its last round",
            hint=f"evaluate it: gradus train {shlex.quote(folder.name)}",
        )
    return Training(folder.name, settings.get("seed", 0), store, evaluations, stages)


def _spent(store: Store, run: str, row: Attempt, computed: ComputedSeconds, on_damage: OnDamage) -> Iterator[Spent]:
    """Yield a stage with its tokens and seconds; nothing if a comparison reads its artifact and cannot."""
    ref, tokens, samples = Ref.parse(row["output"]), 0, row["stage"] == "rollout"
    try:
        if (samples or _evaluates_main(row)) and store.whole(ref) is None:
            raise missing(str(ref), run, "train")
        if samples:
            tokens = sampled_tokens("rollout", read_report(store, ref).get("summary", {}))
        elif _evaluates_main(row):
            store.verify(ref)
    except CorruptArtifactError as damage:
        on_damage(of_run(damage, store.path(ref), run, "train"))
        return
    seconds = computed.of(row["output"]) if row["status"] == "reused" else row["seconds"]
    yield {**row, "tokens": tokens, "seconds": seconds}


def _evaluates_main(row: Attempt) -> bool:
    return row["stage"] == "evaluate" and row["purpose"] == "eval"


def problem_ids(training: Training) -> pa.Array:
    """Return the problems of the main suite of a training, (P,)."""
    return one_array(training.store.read(training.evaluations[0], ["problem_id"]).column("problem_id"))


def problem_rows(store: Store, evaluation: Ref, problems: pa.Array, columns: Sequence[str]) -> pa.Table | None:
    """Return the rows of evaluated problems (P,) in the table that they come from; None if that is not in the lake."""
    ref = store.manifest(evaluation).parent("problems")
    if ref is None or store.find(ref) is None:
        return None
    table = store.read(ref, columns)
    at = positions(problems, table.column("problem_id"))
    return table.take(pa.array(at, mask=at < 0))


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


def recount(trainings: Sequence[Training]) -> int:
    """Count the verdicts of every evaluation of trainings in its scores; return how many evaluations there are.

    Raise BadInputError if an evaluation has other counts than its scores.
    """
    found = {str(ref): (t.store, ref) for t in trainings for ref in t.evaluations.values()}
    for store, evaluation in found.values():
        table = store.read(evaluation, ["problem_id", "n", "k"])
        counts = np.zeros((2, table.num_rows), dtype=np.int64)
        for text in store.manifest(evaluation).parents.get("scores", []):
            scores = store.read(Ref.parse(text), ["problem_id", "correct"]).drop_null()
            at = positions(scores.column("problem_id"), table.column("problem_id"))
            counts += [
                np.bincount(each, minlength=table.num_rows) for each in (at, at[bools(scores.column("correct"))])
            ]
        if (counts != [ints(table.column(name)) for name in ("n", "k")]).any():
            raise BadInputError(
                f"{evaluation} does not count the verdicts of its scores",
                hint="evaluate again: gradus rerun RUN evaluate",
            )
    return len(found)
