"""What an end is called, by what raised it."""

import pytest
from prefect.exceptions import TerminationSignal

from gradus.data.errors import GateError
from gradus.tasks.runtime.stage_adapter import ending
from gradus.tasks.runtime.supervise import HaltedError

AGAIN = "run the same command again to resume"
FULL = (
    "the disk is full: /h/x cannot be written; free some space, or set GRADUS_HOME to a folder on another disk; "
    "then repeat the command"
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (GateError("too many errors", hint="raise it"), ("failed", "too many errors; raise it")),
        (KeyError("x"), ("failed", "'x'")),
        (OSError(28, "No space left", "/h/x"), ("failed", FULL)),
        (HaltedError("ended"), ("killed", "ended")),
        (KeyboardInterrupt(), ("killed", f"stopped by Ctrl-C; {AGAIN}")),
        (TerminationSignal(15), ("killed", f"ended by SIGTERM; {AGAIN}")),
    ],
)
def test_errors_and_signals(error: BaseException, expected: tuple[str, str]) -> None:
    assert ending(error) == expected


def test_a_cancellation_is_a_signal_that_prefect_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect._internal.control_listener._intent", "cancel")
    assert ending(TerminationSignal(15)) == ("cancelled", f"cancelled in Prefect; {AGAIN}")
    assert ending(RuntimeError("what a library made of the signal"))[0] == "cancelled"
    assert ending(KeyboardInterrupt())[0] == "killed"
    assert ending(GateError("too many errors", hint="raise it"))[0] == "failed"
