"""Parts of a stage that Prefect shows: states whose result is at hand, arrows, logs, progress, the page of a round.

The logger `gradus` alone reaches Prefect's pages (PREFECT_LOGGING_EXTRA_LOGGERS); nothing of it is shown at the
terminal, which has lines of its own. Only counts, names, numbers and sentences of ours are shown, nothing that a policy
wrote: Prefect renders Markdown.
"""

import logging
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact
from prefect.client.schemas.objects import State, StateDetails, StateType
from prefect.results import ResultRecord  # pyright: ignore[reportPrivateImportUsage] - what its stores make

from gradus.data.errors import in_words
from gradus.data.lake.store import Store
from gradus.tasks.runtime.calls import Outcome

FIRST_S = 5.0
EVERY_S = 5.0

_log = logging.getLogger("gradus")
_log.setLevel(logging.INFO)
_log.propagate = False
# Without a handler of its own Python would print warnings to the terminal where Prefect has added none.
_log.addHandler(logging.NullHandler())

KEY = "round"
"""One key for all rounds: Prefect shows its artifacts as versions of one page."""
FIGURES = {
    "reward/mean": "mean reward",
    "reward/frac_zero_std_groups": "groups without variance",
    "data/pass_rate_mean": "mean pass rate of the problems measured in it",
    "length/mean": "mean completion length, tokens",
    "length/truncated_frac": "truncated completions",
    "verifier/error_frac": "rows that could not be judged",
    "policy/entropy": "entropy, nats",
    "policy/kl_old": "KL to the policy before the update, nats a token",
    "policy/grad_norm": "gradient norm before clipping",
    "policy/clip_frac_high": "tokens clipped from above",
    "policy/clip_frac_low": "tokens clipped from below",
    "policy/lr": "learning rate",
    "mismatch/logp_diff_mean": "sampler and trainer apart, nats a token",
    "mismatch/kl": "KL of sampler and trainer, nats a token",
}
"""The metrics of a round that are shown, in this order, and their names in words."""


class KnownState(State[Any]):
    """A state whose result is at hand: Prefect's own has an event loop in another thread look for it."""

    def result(self, *_: object, **__: object) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the result."""
        return self.data.result if isinstance(self.data, ResultRecord) else self.data


def made_in(task_run: UUID) -> KnownState:
    """Return what a task waits for to have an arrow from another: its completed state, without the outcome in it.

    Prefect walks through a state that it waits for, and asks for some data.
    """
    return KnownState(type=StateType.COMPLETED, data=True, state_details=StateDetails(task_run_id=task_run))


def log_outcome(outcome: Outcome, folder: Path) -> None:
    """Log how a stage ended well: computed or reused, its counts above 0, its artifact. Inside its Prefect task."""
    how = "reused" if outcome.reused else f"computed in {outcome.seconds:.1f} s"
    numbers = {name: value for name, value in outcome.summary.items() if type(value) is int and value}
    counts = [f"{name.replace('_', ' ')} {value:,}" for name, value in numbers.items()]
    _log.info("%s: %s; %s", outcome.label, how, ", ".join([*counts, str(folder)]))


def log_failure(error: Exception) -> None:
    """Log the sentence of a stage that failed. Inside its Prefect task."""
    _log.error("%s", in_words(error))


class ProgressArtifact:
    """Progress of a running stage, as a progress artifact of its Prefect task run; call it at every beat.

    A call to Prefect's server costs tens of milliseconds, so a stage that ends soon makes none and a long one few. The
    first artifact is made FIRST_S seconds after the stage began; it is then brought up to date every EVERY_S
    seconds at most, and by `done` at the end.
    """

    def __init__(self, stage: str) -> None:
        self._key = f"{stage}-progress"
        self._next_s = time.monotonic() + FIRST_S
        self._artifact: UUID | None = None

    def __call__(self, frac: float, text: str) -> None:
        """The stage has done this share of its work; the text says so in its own units."""
        if time.monotonic() >= self._next_s:
            self._tell(frac, text)
            self._next_s = time.monotonic() + EVERY_S

    def done(self, text: str) -> None:
        """The stage has ended well: where there is an artifact, it says so."""
        if self._artifact is not None:
            self._tell(1.0, text)

    def _tell(self, frac: float, text: str) -> None:
        percent = 100.0 * min(1.0, max(0.0, frac))
        if self._artifact is None:
            made = create_progress_artifact(percent, key=self._key, description=text)
            assert isinstance(made, UUID)  # a coroutine only in asynchronous flows
            self._artifact = made
        else:
            update_progress_artifact(self._artifact, percent, description=text)


def publish_round(run: str, store: Store, outcome: Outcome, earlier: Sequence[Outcome]) -> None:
    """Publish the page of the round that an update ends, in Markdown; nothing for other stages. Inside its task.

    Figures are those of the policy's own attempts, without hints.
    """
    if (outcome.stage, outcome.purpose) != ("update", "train") or not outcome.round:
        return
    outcomes = [*(each for each in earlier if each.round == outcome.round), outcome]
    measured: dict[str, float] = {}
    for each in outcomes:
        if each.purpose == "train":
            measured |= cast("Mapping[str, float]", each.report.get("metrics", {}))
    figures = [f"| {words} | {measured[name]:.4g} |" for name, words in FIGURES.items() if name in measured]
    stages = [
        f"| {each.label} | {'reused' if each.reused else f'{each.seconds:.1f} s'} | {_count(each, 'rows')} "
        f"| {_count(each, 'tokens', 'tokens_trained')} | `{store.path(each.ref)}` |"
        for each in outcomes
    ]
    title = f"round {outcome.round} of {run}"
    lines = [
        *(f"## {title}", "", "| | |", "|---|---|", *figures, ""),
        *("| stage | time | rows | tokens | artifact |", "|---|---|---|---|---|", *stages, ""),
        f"`gradus show {shlex.quote(run)}` lists every stage; `gradus ui` opens its metrics and samples in MLflow.",
    ]
    create_markdown_artifact("\n".join(lines), key=KEY, description=title)


def _count(outcome: Outcome, *names: str) -> str:
    """The first of the counts that a stage reported; empty if it reported none."""
    summary: Mapping[str, object] = outcome.summary
    found = [summary[name] for name in names if isinstance(summary.get(name), int)]
    return f"{found[0]:,}" if found else ""
