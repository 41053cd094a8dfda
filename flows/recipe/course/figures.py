"""Metrics that the rounds of a recipe record, and those that its guards, phases, waves and schedules read."""

from gradus.components.recorded import OF_SUITES, RECORDED
from gradus.data.errors import UsageError, shortened
from gradus.data.nearest import did_you_mean
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.course.phases import of_each_phase


def recorded(recipe: Recipe) -> tuple[str, ...]:
    """Return the metrics that rounds record, as stages write them: of a suite those of evaluations between rounds."""
    suites = [
        f"{OF_SUITES}{suite.name}/{figure}"
        for suite in recipe.evaluate.suites
        if suite.every
        for figure in (*(f"pass_at_{k}" for k in suite.report.ks), "mean_tokens", "reward_mean")
    ]
    return (*RECORDED, *suites, *(column for tracker in recipe.trackers for column in tracker.keeps))


def metrics_read(recipe: Recipe) -> list[tuple[str, str]]:
    """Return each metric that is read, with what reads it."""
    found = [(guard.metric, f"guards.{place}") for place, guard in enumerate(recipe.guards)]
    found += [(phase.until.metric, f"phase.{place}.until") for place, phase in enumerate(recipe.phase) if phase.until]
    for each in of_each_phase(recipe):
        found += [(wave.until.metric, f"until of the wave {wave.label}") for wave in each.all_waves if wave.until]
        found += [(metric, path) for path, chosen in each.schedules.items() for metric in chosen.metrics]
    return found


def refuse_unrecorded(recipe: Recipe, origin: str) -> None:
    """Raise UsageError for a metric that is read and that no round records."""
    known = recorded(recipe)
    lost = tuple(
        f"{tracker.short}." for tracker in recipe.trackers if not tracker.keeps
    )  # their files are checked later
    for metric, reader in metrics_read(recipe):
        if metric in known or metric.startswith(lost):
            continue
        what = f"{origin}: {reader}: no round records {shortened(metric)!r}"
        suite = metric.removeprefix(OF_SUITES).rpartition("/")[0]
        if suite in [each.name for each in recipe.evaluate.suites if not each.every]:
            raise UsageError(what, hint=f"evaluate the suite {suite} between rounds too: set `every` of it")
        raise UsageError(what, hint=did_you_mean(metric, known, f"it is one of {', '.join(known)}"))
    if "policy/kl_ref" in dict(metrics_read(recipe)) and not recipe.update.needs_reference:
        raise UsageError(
            f"{origin}: a guard, phase, wave or schedule reads policy/kl_ref, which is measured only with a reference "
            "policy",
            hint="set update.kl_coef above 0, if only to 1e-6",
        )
