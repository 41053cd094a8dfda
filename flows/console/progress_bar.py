"""Progress of a run: a bar and one line per round on a terminal, otherwise one line per stage.

All of it goes to stderr, so that `--json` leaves one object alone on stdout.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradus.flows.console.output import is_silent
from gradus.flows.console.pace import Pace, Shown
from gradus.tasks.formats import terminal_safe
from gradus.tasks.inspect.remarks import remarks_of
from gradus.tasks.runs.records import Evaluation
from gradus.tasks.runtime.calls import Outcome

BAR_WIDTH = 20
REFRESHES_PER_S = 4


class StageView:
    """A context manager whose methods a Session calls, possibly from several threads."""

    def __init__(
        self, console: Console | None = None, rounds: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console(stderr=True, highlight=False, quiet=is_silent())
        self._moves = not self._console.quiet and self._console.is_terminal and not self._console.is_dumb_terminal
        self._pace = Pace(rounds, clock)
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._said = set[str]()

    def __enter__(self) -> "StageView":
        if self._moves:
            self._live = Live(
                console=self._console,
                get_renderable=self.line,
                refresh_per_second=REFRESHES_PER_S,
                transient=True,
                redirect_stdout=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def line(self) -> Table:
        """The bar with its words, as it is now; what does not fit the width is cut at the end."""
        with self._lock:
            shown = self._pace.shown()
        view = Table.grid(padding=(0, 1, 0, 0))
        place = f"round {shown.round} of {self._pace.rounds}" if self._pace.rounds else ""
        view.add_column(no_wrap=True, min_width=len(place))
        view.add_column(width=BAR_WIDTH, min_width=BAR_WIDTH)
        view.add_column(no_wrap=True, overflow="ellipsis")
        view.add_row(place, ProgressBar(total=1.0, completed=shown.frac, width=BAR_WIDTH), Text(_words(shown)))
        return view

    def beat(self, label: str, frac: float, text: str) -> None:
        """Move the bar: which stage, how far, in its own units."""
        with self._lock:
            self._pace.beat(label, frac, text)

    def note(self, text: str) -> None:
        """Leave a line."""
        self._console.print(Text(terminal_safe(text)), soft_wrap=not self._moves)

    def outcome(self, outcome: Outcome) -> None:
        """Print the line of a stage that ended; on a terminal only of updates and evaluations."""
        with self._lock:
            self._pace.ended(outcome.label, outcome.stage, outcome.round, reused=outcome.reused)
        words = milestone(outcome) or ("" if self._moves else plain(outcome))
        if words:
            place = f"round {outcome.round:>3}  " if self._pace.rounds else ""
            self._console.print(Text(terminal_safe(place + words)), soft_wrap=not self._moves)
        purpose = outcome.purpose if self._pace.rounds else ""
        for remark in [] if outcome.reused else remarks_of(outcome.stage, purpose, outcome.summary):
            if remark not in self._said:
                self._said.add(remark)
                self.note(f"note: {remark}")


def milestone(outcome: Outcome) -> str:
    """One line about an update or an evaluation; empty for other stages."""
    if outcome.summary.get("skipped_updates"):
        told = f"skipped: all {outcome.summary.get('groups', 0)} groups have rewards without variance"
    elif outcome.stage == "update":
        reward = outcome.report.get("metrics", {}).get("trained/reward_mean")  # absent in artifacts of earlier versions
        told = f"{outcome.summary.get('tokens_trained', 0):,} tokens trained"
        told = told if reward is None else f"reward {reward:.3f}, {told}"
    elif outcome.stage == "evaluate":
        told = f"{outcome.evaluation['suite']} {_evaluated(outcome.evaluation)}"
    else:
        return ""
    return f"{outcome.stage:<8}  {told} ({_how(outcome)})"


def plain(outcome: Outcome) -> str:
    """One line about any other stage: its purpose if that is not training, rows, tokens, seconds."""
    name = outcome.stage if outcome.purpose == "train" else f"{outcome.purpose}-{outcome.stage}"
    numbers = {key: outcome.summary.get(key) for key in ("rows", "groups", "tokens")}
    counts = [f"{number:,} {key}" for key, number in numbers.items() if number is not None]
    return f"{name:<8}  {', '.join(counts)}{' ' if counts else ''}({_how(outcome)})"


def _how(outcome: Outcome) -> str:
    return "reused" if outcome.reused else f"{outcome.seconds:.1f} s"


def _words(shown: Shown) -> str:
    left_s = None if shown.left_s is None else round(shown.left_s)
    parts = (
        f"{shown.frac:.0%}",
        "" if left_s is None else f"{_clock(left_s)} left",
        "" if shown.tokens_per_s is None else f"{shown.tokens_per_s:,.0f} tokens/s",
        " | ".join(shown.stages),
    )
    return terminal_safe("  ".join(filter(None, parts)))


def _clock(seconds: int) -> str:
    """Seconds as m:ss, or h:mm:ss."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _evaluated(summary: Evaluation) -> str:
    """pass@1, or the mean reward of an evaluation without verdicts, with the coverage if it is not whole."""
    judged = f" ({summary['judged']} of {summary['rollouts']} judged)" if summary["unjudged"] else ""
    if "1" in summary["pass_at"]:
        return f"pass@1 {summary['pass_at']['1']['value']:.3f}{judged}"
    reward = summary.get("reward_mean")
    return f"reward {reward['value']:.3f}{judged}" if reward else f"{summary['rows']} problems{judged}"
