"""Spending of a training: completion tokens and seconds of its stages, evaluation apart.

A stage that is reused counts as much as it cost when it was computed, in whichever run: a training costs the same
whether it shares its profile with another or not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gradus.data.errors import OnDamage, refuse
from gradus.tasks.runs.history import run_folders
from gradus.tasks.runs.precedents import finished
from gradus.tasks.runs.records import Summary


def is_evaluation(purpose: str) -> bool:
    """Return whether a stage serves an evaluation: `eval` of the main suite, `eval-NAME` of the others."""
    return purpose == "eval" or purpose.startswith("eval-")


def sampled_tokens(stage: str, summary: Summary) -> int:
    """Return the completion tokens of a stage by its report: those of a rollout, whatever became of them.

    Texts that were given are not among them.
    """
    return int(summary.get("tokens", 0) - summary.get("given_tokens", 0)) if stage == "rollout" else 0


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
        return {
            str(each.output): round(each.seconds, 3)
            for folder in run_folders(self.runs)
            for each in finished(folder, self.on_damage)
        }
