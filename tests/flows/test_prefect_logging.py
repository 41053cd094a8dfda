"""Prefect's logging configuration, set up without the text of all of its settings."""

from pathlib import Path

import pytest
from prefect.logging.configuration import DEFAULT_LOGGING_SETTINGS_PATH, load_logging_config
from prefect.settings import Settings, get_current_settings

from gradus.flows.environment import LookedUp, short_logging_setup


def test_prefects_logging_is_what_it_would_be_and_no_other_setting_is_written_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = load_logging_config(DEFAULT_LOGGING_SETTINGS_PATH)
    written: list[Settings] = []
    monkeypatch.setattr(Settings, "to_environment_variables", lambda settings, **_: written.append(settings))
    end = short_logging_setup()
    try:
        assert load_logging_config(DEFAULT_LOGGING_SETTINGS_PATH) == expected
    finally:
        end()
    assert not written


def test_a_users_own_configuration_may_name_any_setting(tmp_path: Path) -> None:
    (tmp_path / "logging.yml").write_text("formatters: {plain: {format: '$PREFECT_HOME'}}\n")
    end = short_logging_setup()
    try:
        assert load_logging_config(tmp_path / "logging.yml")["formatters"]["plain"]["format"] == str(
            get_current_settings().home
        )
    finally:
        end()


def test_whoever_else_asks_for_the_settings_gets_all_of_them() -> None:
    settings = get_current_settings()
    everything = settings.to_environment_variables(exclude_unset=True)
    end = short_logging_setup()
    try:
        assert settings.to_environment_variables(exclude_unset=True) == everything
    finally:
        end()


def test_every_setting_is_there_and_an_unknown_one_is_not() -> None:
    settings = get_current_settings()
    everything = settings.to_environment_variables(include_aliases=True)
    found = LookedUp(settings, lambda: everything)
    assert {name: found[name] for name in everything} == everything
    with pytest.raises(KeyError):
        _ = found["PREFECT_NOWHERE"]
