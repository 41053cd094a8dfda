"""Prefect's logging set-up, without the text of all of its settings."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
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
        return LookedUp(settings, lambda: whole(settings, **how))

    def end() -> None:
        Settings.to_environment_variables = whole

    Settings.to_environment_variables = looked_up  # pyright: ignore[reportAttributeAccessIssue] - a mapping is enough
    return end


class LookedUp(Mapping[str, str]):
    """Settings of Prefect by the names of their environment variables; all are written out if another is asked for."""

    def __init__(self, settings: "Settings", whole: Callable[[], Mapping[str, str]]) -> None:
        """Look up names of Prefect's own logging configuration in `settings`, all others in `whole()`."""
        self._levels = {
            "PREFECT_LOGGING_LEVEL": settings.logging.level,
            "PREFECT_SERVER_LOGGING_LEVEL": settings.server.logging_level,
            "PREFECT_INTERNAL_LOGGING_LEVEL": settings.internal.logging_level,
        }
        self._write_out = whole

    @cached_property
    def _whole(self) -> Mapping[str, str]:
        return self._write_out()

    def __getitem__(self, name: str) -> str:
        """Return a setting's text; KeyError if Prefect has none of that name."""
        return self._levels[name] if name in self._levels else self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole)

    def __len__(self) -> int:
        return len(self._whole)
