"""Prefect's logging set-up, without the text of all of its settings."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.settings import Settings


def short_logging_setup() -> Callable[[], None]:
    """Have Prefect look up the settings that its logging configuration names; return a function that ends this.

    For three names Prefect 3.7.7 writes out all of its settings, 60 ms of every command. Call it before
    `prefect.main` is imported, which configures logging.
    """
    from prefect.settings import Settings  # noqa: PLC0415 - an import of all of Prefect

    whole = Settings.to_environment_variables

    def looked_up(settings: "Settings", **how: bool) -> Mapping[str, str]:
        found = partial(whole, settings, **how)
        return LookedUp(settings, found) if how == {"include_aliases": True} else found()

    def end() -> None:
        Settings.to_environment_variables = whole

    Settings.to_environment_variables = looked_up  # pyright: ignore[reportAttributeAccessIssue] - a mapping is enough
    return end


class LookedUp(dict[str, str]):
    """The levels of Prefect's logging by the names of their variables; another name is looked up in all settings."""

    def __init__(self, settings: "Settings", whole: Callable[[], Mapping[str, str]]) -> None:
        """Take the levels from `settings`, and have all others written out by `whole` if one is asked for."""
        super().__init__(
            PREFECT_LOGGING_LEVEL=settings.logging.level,
            PREFECT_SERVER_LOGGING_LEVEL=settings.server.logging_level,
            PREFECT_INTERNAL_LOGGING_LEVEL=settings.internal.logging_level,
        )
        self._write_out = cache(whole)

    def __missing__(self, name: str) -> str:
        return self._write_out()[name]
