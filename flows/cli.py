"""The `gradus` program: every verb is a flow. Output is a table for people, or with --json one object on stdout.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import signal
import sys
import traceback
from datetime import UTC, datetime

import flows.quiet  # noqa: F401  # pyright: ignore[reportUnusedImport] - what is imported after it may warn

# isort: split

import typer

from data.errors import GradusError
from flows.cli_runs import register_runs
from flows.cli_service import register_service
from flows.cli_stages import register_stages
from flows.environment import prepare
from tasks.access import prefect_answer
from tasks.redaction import hide, hide_in_logs, refuse_credentials
from tasks.report import terminal_safe
from tasks.settings import Home

INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    name="gradus",
    help="Reinforcement learning with verifiable rewards, stage by stage.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
register_stages(app)
register_runs(app)
register_service(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the program; every failure is one sentence and a non-zero exit."""
    home = Home.from_environment()
    prepare(home)
    hide_in_logs()
    words = sys.argv[1:] if arguments is None else arguments
    try:
        refuse_credentials(words)
        app(arguments)  # says what is wrong with the usage by itself and exits 2
    except SystemExit as end:
        if end.code == INTERRUPTED:  # Ctrl-C, which typer answers without a word
            _say("stopped; the same command goes on where this one ended")
        raise
    except GradusError as error:
        _say(f"gradus: {error}")
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a sentence, not a traceback
        known = prefect_answer(error).sentence
        _say(f"gradus: {known or f'{type(error).__name__}: {error}; the details are in {_keep_details(home)}'}")
        sys.exit(1)


def _say(text: str) -> None:
    print(terminal_safe(hide(text)), file=sys.stderr)  # noqa: T201 - the program's voice


def _keep_details(home: Home) -> str:
    path = home.root / "errors" / f"{datetime.now(UTC):%Y%m%d-%H%M%S}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(hide(traceback.format_exc()))
    return str(path)


if __name__ == "__main__":
    main()
