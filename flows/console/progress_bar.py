"""Progress of a run: bars and one line per round on a terminal, otherwise one line per stage.

A round ends with its update; the time left is what rounds took that were computed now, times the rounds that are left.
All of it goes to stderr, so that `--json` leaves one object alone on stdout.
"""

import re
import threading
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from gradus.flows.console.output import is_silent
from gradus.tasks.formats import terminal_safe
from gradus.tasks.inspect.remarks import remarks_of
from gradus.tasks.runs.records import Evaluation
from gradus.tasks.runtime.calls import Outcome
from gradus.tasks.stages.gates import without_signal

BAR_WIDTH = 20
REFRESHES_PER_S = 4
_WHOLE_RUN_S = 1e9
"""Speeds are those since a bar began."""
_TOKENS = re.compile(r"\b(\d+) tokens\b")


class _Speed(ProgressColumn):
    """Tokens per second of a stage that says how many it has sampled."""

    def render(self, task: Task) -> Text:
        found = _TOKENS.search(task.fields["text"])
        if found is None or not task.speed or not task.completed:
            return Text()
        return Text(f"{task.speed * int(found[1]) / task.completed:,.0f} tokens/s", no_wrap=True)


class StageView(Progress):
    """Bars of a run and of its running stages, whose methods a Session calls, possibly from several threads."""

    def __init__(
        self, console: Console | None = None, rounds: int = 0, clock: Callable[[], float] | None = None
    ) -> None:
        console = console or Console(stderr=True, highlight=False, quiet=is_silent())
        self._moves = not console.quiet and console.is_terminal and not console.is_dumb_terminal
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.percentage:.0f}%"),
            TimeRemainingColumn(compact=True),
            _Speed(),
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            refresh_per_second=REFRESHES_PER_S,
            speed_estimate_period=_WHOLE_RUN_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            get_time=clock,
            disable=not self._moves,
        )
        self._rounds, self._done = rounds, 0
        self._run = self.add_task(f"round 0 of {rounds}", total=rounds, visible=rounds > 0, text="")
        self._stages: dict[str, TaskID] = {}
        self._turn = threading.Lock()
        self._said = set[str]()

    def beat(self, label: str, frac: float, text: str) -> None:
        """Move the bar of a stage, called `purpose-stage-round`."""
        with self._turn:
            if label not in self._stages:
                self._stages[label] = self.add_task(terminal_safe(label), total=1.0, text="")
                self.advance(self._stages[label], 0)  # its time begins now
                self._place(label.rpartition("-")[2])
            self.update(self._stages[label], completed=min(1.0, max(0.0, frac)), text=terminal_safe(text))

    def note(self, text: str) -> None:
        """Leave a line."""
        self.console.print(Text(terminal_safe(text)), soft_wrap=not self._moves)

    def outcome(self, outcome: Outcome) -> None:
        """Print the line of a stage that ended; on a terminal only of updates and evaluations."""
        with self._turn:
            self._ended(outcome)
        words = milestone(outcome) or ("" if self._moves else plain(outcome))
        if words:
            place = f"round {outcome.round:>3}  " if self._rounds else ""
            self.note(place + words)
        purpose = outcome.purpose if self._rounds else ""
        for remark in [] if outcome.reused else remarks_of(outcome.stage, purpose, outcome.summary):
            if remark not in self._said:
                self._said.add(remark)
                self.note(f"note: {remark}")

    def _ended(self, outcome: Outcome) -> None:
        """Remove the bar of a stage, and move that of the run if a round ended."""
        if (task := self._stages.pop(outcome.label, None)) is not None:
            self.remove_task(task)
        self._place(str(outcome.round))
        ended = outcome.stage == "update" and outcome.round > self._done
        self._done = outcome.round if ended else self._done
        if ended and not outcome.reused:
            self.update(self._run, completed=self._done)
        elif ended or not outcome.round:  # reused, or before the first round: it says nothing of how long one takes
            self.reset(self._run, completed=self._done)
            self.advance(self._run, 0)

    def _place(self, index: str) -> None:
        if index.isdigit():
            self.update(self._run, description=f"round {index} of {self._rounds}")


def milestone(outcome: Outcome) -> str:
    """One line about an update or an evaluation; empty for other stages."""
    if outcome.summary.get("skipped_updates"):
        text = f"skipped: {without_signal(outcome.summary.get('groups', 0))}"
    elif outcome.stage == "update":
        reward = outcome.report.get("metrics", {}).get("trained/reward_mean")  # absent in artifacts of earlier versions
        text = f"{outcome.summary.get('tokens_trained', 0):,} tokens trained"
        text = text if reward is None else f"reward {reward:.3f}, {text}"
    elif outcome.stage == "evaluate":
        text = f"{outcome.evaluation['suite']} {_evaluated(outcome.evaluation)}"
    else:
        return ""
    return f"{outcome.stage:<8}  {text} ({_how(outcome)})"


def plain(outcome: Outcome) -> str:
    """One line about any other stage: its purpose if that is not training, rows, tokens, seconds."""
    name = outcome.stage if outcome.purpose == "train" else f"{outcome.purpose}-{outcome.stage}"
    numbers = {key: outcome.summary.get(key) for key in ("rows", "groups", "tokens")}
    counts = [f"{number:,} {key}" for key, number in numbers.items() if number is not None]
    return f"{name:<8}  {', '.join(counts)}{' ' if counts else ''}({_how(outcome)})"


def _how(outcome: Outcome) -> str:
    return "reused" if outcome.reused else f"{outcome.seconds:.1f} s"


def _evaluated(summary: Evaluation) -> str:
    """pass@1, or the mean reward of an evaluation without verdicts, with the coverage if it is not whole."""
    judged = f" ({summary['judged']} of {summary['rollouts']} judged)" if summary["unjudged"] else ""
    if "1" in summary["pass_at"]:
        return f"pass@1 {summary['pass_at']['1']['value']:.3f}{judged}"
    reward = summary.get("reward_mean")
    return f"reward {reward['value']:.3f}{judged}" if reward else f"{summary['rows']} problems{judged}"
