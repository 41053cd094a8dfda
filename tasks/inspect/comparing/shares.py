"""Shares of what trainings sampled: cut off, without signal, and common to two methods."""

from collections.abc import Sequence

from gradus.tasks.inspect.comparing.trainings import Spent, Training
from gradus.tasks.runtime.attempt import read_report

TRUNCATED = ("rollout", "length/truncated_frac")
DEAD = ("score", "reward/frac_zero_std_groups")
"""Stage and metric of its report."""


def training_share(trainings: Sequence[Training], of: tuple[str, str]) -> float | None:
    """Return a metric of the rounds of trainings, weighted by rows; None if no stage reports it."""
    stage, metric = of
    found: list[tuple[float, int]] = []
    for training in trainings:
        for each in training.stages:
            if each.stage == stage and each.round > 0 and not each.evaluates:
                report = read_report(training.store, each.output)
                value = report.get("metrics", {}).get(metric)
                if value is not None:
                    found.append((value, report.get("summary", {}).get("rows", 0)))
    rows = sum(number for _, number in found)
    return sum(value * number for value, number in found) / rows if rows else None


def shared_tokens(one: Sequence[Training], other: Sequence[Training]) -> float:
    """Return the share of the tokens of two methods that went into artifacts that trainings of one seed share."""
    shared = both = 0
    for mine, theirs in zip(one, other, strict=False):
        outputs = {str(each.output): each for each in _sampled(mine)}
        shared += 2 * sum(each.tokens for each in _sampled(theirs) if str(each.output) in outputs)
        both += mine.tokens + theirs.tokens
    return shared / both if both else 0.0


def _sampled(training: Training) -> list[Spent]:
    return [each for each in training.stages if each.tokens and not each.evaluates]
