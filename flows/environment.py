"""The environment that Prefect and MLflow must find before they are imported."""

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from gradus.data.errors import GradusError
from gradus.tasks.config.settings import Home, check_environment, check_room
from gradus.tasks.host.home_folder import open_home, secret
from gradus.tasks.host.interrupt import remember_interrupts, stop_at_once
from gradus.tasks.host.libraries import ignore_setting_files, lean_imports, prefect_files, profile_api
from gradus.tasks.host.processes import isolate, refuse_unusable_proxies
from gradus.tasks.servers.home_servers import connect, join

if TYPE_CHECKING:
    from prefect.settings import Settings

_SEND_LIMIT_S = 30.0


def prepare(home: Home) -> None:
    """Point Prefect at the home, quiet, local, isolated; the user's variables stay. GradusError if it may not be."""
    defaults = {
        "PREFECT_HOME": str(home.prefect),
        **prefect_files(),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(home.prefect / "results"),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_API_REQUEST_TIMEOUT": "180",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "gradus",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    isolate(os.environ)
    ignore_setting_files()
    open_home(home)
    # At the end of a quick command Prefect warns of each event that is still on its way, then sends it all the same.
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)


@contextlib.contextmanager
def api(*, guest: bool = False) -> Generator[Callable[[], None]]:
    """Prepare to run flows: handle Ctrl-C and connect to the home's Prefect server, `prefect_api`.

    Yields a function to call once the flows are imported. A guest in a process that continues afterwards handles its
    own interrupts; Prefect's last events are sent, and its server is released, before the block ends.
    """
    if not guest:
        stop_at_once()  # nothing is begun that would have to be ended
    check_environment()  # a wrong value is refused before anything starts
    refuse_unusable_proxies()
    home = Home.from_environment()
    check_room(home)
    own = not _named_api()
    # Prefect imports pandas, a fifth of its own import, for keys of its task cache, which is off here.
    imported_before = guest and "prefect.main" in sys.modules
    as_it_is = contextlib.nullcontext[Callable[[], None]](lambda: None)
    lean = as_it_is if imported_before else lean_imports(*([] if guest else ["pandas"]))
    with prefect_api(home, leave=guest) as ready, lean as imported, contextlib.ExitStack() as settings:
        configured = short_logging_setup()
        settings.callback(configured)

        def begin() -> None:
            imported()
            configured()
            if own or guest:
                settings.enter_context(_prefect_settings(heartbeats=not own, renewed=guest))
            if guest:
                settings.callback(_send_events)
            ready()
            if not guest:
                remember_interrupts()

        yield begin


@contextlib.contextmanager
def _prefect_settings(*, heartbeats: bool, renewed: bool) -> Generator[None]:
    """Settings of Prefect in this block; `renewed` takes the server from the environment, which Prefect reads once.

    Without heart-beats Prefect does not wait at the end, up to a second, for the thread that sends them. Only
    automations of a user's own server need them; at a home's server a later command finds killed runs.
    """
    from prefect.context import SettingsContext, get_settings_context  # noqa: PLC0415

    # Prefect's `temporary_settings` validates all settings again, which takes longer than the flow's requests.
    known = get_settings_context()
    settings, changed = known.settings, dict[str, object]()
    if not heartbeats:
        changed["flows"] = settings.flows.model_copy(update={"heartbeat_frequency": None})
    if renewed and (url := os.environ.get("PREFECT_API_URL")):
        key = os.environ.get("PREFECT_API_AUTH_STRING")
        server = {"url": url, "auth_string": SecretStr(key) if key else None}
        changed["api"] = settings.api.model_copy(update=server)
        changed["home"] = Path(os.environ["PREFECT_HOME"])
    with SettingsContext(profile=known.profile, settings=settings.model_copy(update=changed)):
        yield


def _send_events() -> None:
    """Have Prefect send its last events and log records; in a thread, since it would not wait in an event loop."""
    from prefect.events.worker import EventsWorker  # noqa: PLC0415

    sending = threading.Thread(target=partial(EventsWorker.drain_all, timeout=_SEND_LIMIT_S), daemon=True)
    sending.start()
    sending.join()


@contextlib.contextmanager
def prefect_api(home: Home, *, schedules: bool = False, leave: bool = False) -> Generator[Callable[[], None]]:
    """Prefect's API for flows that this process runs: the server that was named, or the one of this home.

    Yields a function to call once the flows are imported: it waits until the server may be spoken to.
    A server that the user named is used as it is; this home's secret is sent to this home's server alone. With `leave`
    the home's own is released at the end of the block.
    """
    named = _named_api()
    connection = join(home.root, named) if named else connect(home.root, pages=schedules)
    if connection is None:
        yield lambda: None
        return
    key = os.environ.get("PREFECT_API_AUTH_STRING") if named else ""
    known = {"PREFECT_API_AUTH_STRING": key or secret(home.root)}
    # A command's use ends with its process, not here: Prefect sends the last events when the interpreter ends.
    with kept_environment(known if named else {"PREFECT_API_URL": f"{connection.address}/api", **known}):
        try:
            yield connection.wait
        except GradusError:
            raise
        except Exception:
            if connection.lost:
                raise connection.explain() from None
            raise
        finally:
            if leave:
                connection.close()


def _named_api() -> str:
    """Return the API that the environment names, or a profile that the user chose; empty if neither does."""
    return os.environ.get("PREFECT_API_URL") or profile_api()


@contextlib.contextmanager
def kept_environment(values: Mapping[str, str] = {}) -> Generator[None]:
    """Set environment variables, and put back at the end of the block what all of them were."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


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
        super().__init__(
            PREFECT_LOGGING_LEVEL=settings.logging.level,
            PREFECT_SERVER_LOGGING_LEVEL=settings.server.logging_level,
            PREFECT_INTERNAL_LOGGING_LEVEL=settings.internal.logging_level,
        )
        self._write_out = cache(whole)

    def __missing__(self, name: str) -> str:
        return self._write_out()[name]
