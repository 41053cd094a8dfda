"""Runs take turns on the GPUs of a machine; GRADUS_GPU_TURNS makes each count as one that computes there."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Program
from tests.patience import until
from tests.servers import workers_of

WARMSTART = ["warmstart", "--problems", "train.jsonl", "--set", "width=16", "--set", "layers=1", "--json", "--set"]
SENTENCE = "uses the GPUs of this machine"


def turn(cache: Path) -> str:
    """What the holder of the turn says of itself."""
    return "".join(path.read_text() for path in cache.glob("gradus/gpu-*/.lock"))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_second_run_of_another_home_waits_and_says_so_until_the_first_has_ended_or_is_killed(
    new_program: Callable[..., Program], tmp_path: Path, sent: signal.Signals
) -> None:
    first, second = new_program(), new_program()
    on = {"GRADUS_GPU_TURNS": "on", "XDG_CACHE_HOME": str(tmp_path)}
    holds = first.start(*WARMSTART, "steps=1000000", **on)
    until(lambda: workers_of(holds.pid) and str(holds.pid) in turn(tmp_path), wrong=first.told)
    stopped = workers_of(holds.pid)
    for process in stopped:
        process.suspend()  # it costs nothing while another waits
    refused = second.start(*WARMSTART, "steps=1", "--no-wait", **on)
    assert refused.wait(timeout=300) == 1, second.told()
    assert SENTENCE in second.told()
    assert "leave out --no-wait" in second.told()
    waits = second.start(*WARMSTART, "steps=1", **on)
    until(lambda: SENTENCE in second.told(), wrong=second.told)
    assert f"(process {holds.pid} on " in second.told()
    assert waits.poll() is None
    assert SENTENCE not in first.told()
    os.killpg(holds.pid, sent)
    assert holds.wait(timeout=300) == (130 if sent == signal.SIGINT else -signal.SIGKILL)
    for process in stopped:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()  # one that was stopped before it followed its parent into death ends now
    assert waits.wait(timeout=300) == 0, second.told()
    assert len(list((second.home / "lake" / "checkpoints").glob("*/model.safetensors"))) == 1
    assert not turn(tmp_path)
