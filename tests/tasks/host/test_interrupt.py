"""An interrupt that somebody swallowed is still acted on: at the next stage, and while a worker computes."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradus.tasks.host.interrupt import raise_if_interrupted, remember_interrupts
from gradus.tasks.runtime.supervise import Limits, WorkerPool


@pytest.fixture(autouse=True)
def remembered() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    remember_interrupts()
    yield
    remember_interrupts()
    signal.signal(signal.SIGINT, before)


def interrupt_and_swallow() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        raise AssertionError("the interrupt did not come")


def test_a_swallowed_interrupt_comes_again_until_it_is_heard() -> None:
    raise_if_interrupted()
    interrupt_and_swallow()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            raise_if_interrupted()


def test_a_waiting_parent_hears_of_it_at_the_workers_next_message(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "faults")}
    beats: list[float] = []

    def swallowing(frac: float, _text: str) -> None:
        beats.append(frac)
        interrupt_and_swallow()

    with (
        WorkerPool(tmp_path, environment, execute="jobs_for_workers:execute") as pool,
        pytest.raises(KeyboardInterrupt),
    ):
        pool.run("test", {"stage": "t", "do": "count"}, Limits(), swallowing)
    assert beats == [0.5]
