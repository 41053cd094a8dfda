"""What a verb finds around its flow: garbage collection, Prefect's heart-beats and its logging configuration."""

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prefect.logging.configuration import DEFAULT_LOGGING_SETTINGS_PATH, load_logging_config
from prefect.settings import Settings, get_current_settings

from gradus.flows.environment import LookedUp, _prefect_settings, api, short_logging_setup


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


@contextmanager
def configured() -> Iterator[None]:
    end = short_logging_setup()
    try:
        yield
    finally:
        end()


def test_prefects_logging_is_what_it_would_be_and_no_other_setting_is_written_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = load_logging_config(DEFAULT_LOGGING_SETTINGS_PATH)
    written: list[Settings] = []
    monkeypatch.setattr(Settings, "to_environment_variables", lambda settings, **_: written.append(settings))
    with configured():
        assert load_logging_config(DEFAULT_LOGGING_SETTINGS_PATH) == expected
    assert not written


def test_a_users_own_configuration_may_name_any_setting(tmp_path: Path) -> None:
    (tmp_path / "logging.yml").write_text("formatters: {plain: {format: '$PREFECT_HOME'}}\n")
    with configured():
        found = load_logging_config(tmp_path / "logging.yml")["formatters"]["plain"]["format"]
    assert found == str(get_current_settings().home)


def test_whoever_else_asks_for_the_settings_gets_all_of_them() -> None:
    settings = get_current_settings()
    everything = settings.to_environment_variables(exclude_unset=True)
    with configured():
        assert settings.to_environment_variables(exclude_unset=True) == everything


def test_every_setting_is_there_and_an_unknown_one_is_not() -> None:
    settings = get_current_settings()
    everything = settings.to_environment_variables(include_aliases=True)
    found = LookedUp(settings, lambda: everything)
    assert {name: found[name] for name in everything} == everything
    with pytest.raises(KeyError):
        _ = found["PREFECT_NOWHERE"]
