"""What a verb finds around its flow: garbage collection and Prefect's heart-beats."""

import gc
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.settings import get_current_settings

from gradus.flows.environment import _prefect_settings, api


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def test_nothing_is_collected_until_the_flows_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "theirs")
    with api() as ready:
        assert not gc.isenabled()
        ready()
        assert gc.isenabled()
        assert get_current_settings().flows.heartbeat_frequency == 180  # of a server that somebody named
    with pytest.raises(ValueError, match="an import failed"), api():
        raise ValueError("an import failed")
    assert gc.isenabled()


def test_a_homes_own_server_is_sent_no_heartbeats() -> None:
    with _prefect_settings(heartbeats=False, renewed=False):
        assert get_current_settings().flows.heartbeat_frequency is None
    assert get_current_settings().flows.heartbeat_frequency == 180
