"""What a person at the terminal sees while a run works: a moving line for its stages, one line that stays for a round.

All of it goes to stderr, so that `--json` leaves one object alone on stdout. Without a terminal only the lines that
stay are written.
"""

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from tasks.calls import Outcome
from tasks.report import terminal_safe


class StageView:
    """A context manager; give its methods to a Session, whose stages may be in several threads."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._running: dict[str, str] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> "StageView":
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def beat(self, label: str, frac: float, text: str) -> None:
        """Move the line: which stage, how far, in its own units."""
        with self._lock:
            self._running[label] = f"{label}  {frac:4.0%}  {text}"
            if self._status is not None:
                self._status.update(Text(terminal_safe("  |  ".join(self._running.values()))))

    def note(self, text: str) -> None:
        """Leave a line."""
        self._console.print(Text(terminal_safe(text)))

    def outcome(self, outcome: Outcome) -> None:
        """A stage ended: an update and an evaluation leave a line."""
        with self._lock:
            self._running.pop(outcome.label, None)
        words = milestone(outcome)
        if words:
            self._console.print(Text(terminal_safe(words)))


def milestone(outcome: Outcome) -> str:
    """One line about an update or an evaluation; empty for other stages."""
    how = "reused" if outcome.reused else f"{outcome.seconds:.1f} s"
    if outcome.stage == "update":
        reward = outcome.report["metrics"].get("trained/reward_mean")  # absent in artefacts of earlier versions
        told = f"{outcome.summary['tokens_trained']:,} tokens trained"
        told = told if reward is None else f"reward {reward:.3f}, {told}"
    elif outcome.stage == "evaluate":
        told = f"{outcome.summary['suite']} {_evaluated(outcome.summary)}"
    else:
        return ""
    return f"round {outcome.round:>3}  {outcome.stage:<8}  {told} ({how})"


def _evaluated(summary: Mapping[str, Any]) -> str:
    """pass@1, or the mean reward of an evaluation without verdicts, with the coverage if it is not whole."""
    judged = f" ({summary['judged']} of {summary['rollouts']} judged)" if summary["unjudged"] else ""
    if "1" in summary["pass_at"]:
        return f"pass@1 {summary['pass_at']['1']['value']:.3f}{judged}"
    reward = summary.get("reward_mean")
    return f"reward {reward['value']:.3f}{judged}" if reward else f"{summary['rows']} problems{judged}"
