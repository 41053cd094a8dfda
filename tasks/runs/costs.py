"""Earlier computations by the journals of all runs, and their cost: seconds and completion tokens.

A stage that is reused counts as much as it cost when it was computed, in whichever run: a training costs the same
whether it shares its profile with another or not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gradus.data.errors import OnDamage, refuse
from gradus.data.lake.store import Ref
from gradus.tasks.runs.history import read_story, run_folders
from gradus.tasks.runs.records import Summary

NUM_RUNS = 100
"""Journals read for precedents, newest first."""

Key = tuple[str, int, str]
"""Stage, round, purpose."""


@dataclass(frozen=True)
class Precedent:
    """An attempt of a stage that ended well: in which run, with what result, in how many seconds."""

    run: str
    key: Key
    output: Ref
    started: float
    seconds: float
    summary: Summary


def of_call(found: Sequence[Precedent], key: Key) -> list[Precedent]:
    """Return the precedents of the same stage, round and purpose."""
    return [each for each in found if each.key == key]


def alike(found: Sequence[Precedent], key: Key) -> list[Precedent]:
    """Return those most like a call: of its round and purpose if there are any, else of its purpose, else all."""
    stage, _, purpose = key
    same_stage = [each for each in found if each.key[0] == stage]
    same_purpose = [each for each in same_stage if each.key[2] == purpose]
    return of_call(found, key) or same_purpose or same_stage


def precedents(runs: Path, prefer: str = "") -> list[Precedent]:
    """Return every attempt that ended well, newest first; those of runs whose name begins with `prefer` come first."""
    folders = run_folders(runs)[:NUM_RUNS]
    folders.sort(key=lambda folder: not folder.name.startswith(prefer))
    return [each for folder in folders for each in reversed(_finished(folder, refuse))]


def _finished(folder: Path, on_damage: OnDamage) -> list[Precedent]:
    """Return the attempts of a run that ended well, in the order they began."""
    story = read_story(folder, on_damage)
    return [
        Precedent(
            folder.name,
            (row["stage"], row["round"], row["purpose"]),
            Ref.parse(row["output"]),
            row["started"],
            row["seconds"],
            story.ended[name]["summary"],
        )
        for name, row in story.rows.items()
        if row["status"] == "finished"
    ]


@dataclass(frozen=True)
class ComputedSeconds:
    """Seconds that artifacts took to compute, by the journals of all runs; each is read once, when one is asked for."""

    runs: Path
    on_damage: OnDamage = refuse

    def of(self, output: str) -> float:
        """Return the seconds of an artifact; 0 if no journal has it."""
        return self._seconds.get(output, 0.0)

    @cached_property
    def _seconds(self) -> Mapping[str, float]:
        found = (each for folder in run_folders(self.runs) for each in _finished(folder, self.on_damage))
        return {str(each.output): each.seconds for each in found}


def is_evaluation(purpose: str) -> bool:
    """Return whether a stage serves an evaluation: `eval` of the main suite, `eval-NAME` of the others."""
    return purpose == "eval" or purpose.startswith("eval-")


def sampled_tokens(stage: str, summary: Summary) -> int:
    """Return the completion tokens of a stage by its report: those of a rollout, whatever became of them.

    Texts that were given are not among them.
    """
    return int(summary.get("tokens", 0) - summary.get("given_tokens", 0)) if stage == "rollout" else 0
