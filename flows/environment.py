"""The environment that Prefect and MLflow must find before they are imported."""

import contextlib
import logging
import os
from collections.abc import Callable, Generator

from gradus.data.errors import GradusError, in_words
from gradus.flows.prefect_logging import short_logging_setup
from gradus.tasks.config.settings import Home, check_environment, check_room
from gradus.tasks.host.imports import lean_imports
from gradus.tasks.host.interrupt import remember_interrupts
from gradus.tasks.host.isolation import isolate, refuse_unusable_proxies
from gradus.tasks.servers.prefect_server import connect, lent_secret


def prepare(home: Home) -> None:
    """Point Prefect at the home folder, keep it quiet, local and isolated; settings of the user stay.

    GradusError if there can be no home there.
    """
    defaults = {
        "PREFECT_HOME": str(home.prefect),
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
    try:
        home.prefect.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = in_words(error).message
        raise GradusError(
            f"the home folder {home.root} cannot be used: {problem}", hint="set GRADUS_HOME to a folder you can write"
        ) from None
    # At the end of a quick command Prefect warns of each event that is still on its way, then sends it all the same.
    logging.getLogger("EventsWorker").setLevel(logging.ERROR)


@contextlib.contextmanager
def api() -> Generator[Callable[[], None]]:
    """What a verb needs that runs flows: an interrupt that is not lost, and `prefect_api` of its home.

    with api() as ready:
        from gradus.flows import stages
        ready()
        stages.hint("problems.jsonl")
    """
    remember_interrupts()
    check_environment()  # a wrong value is refused before anything starts
    refuse_unusable_proxies()
    home = Home.from_environment()
    check_room(home)
    own = not _named_api(home)
    # Prefect imports pandas, a fifth of its own import, for keys of its task cache, which is off here.
    with prefect_api(home) as ready, lean_imports("pandas") as imported, contextlib.ExitStack() as settings:
        configured = short_logging_setup()

        def begin() -> None:
            imported()
            configured()
            if own:
                settings.enter_context(_no_heartbeats())
            ready()

        yield begin


@contextlib.contextmanager
def _no_heartbeats() -> Generator[None]:
    """Send none of Prefect's heart-beats: at the end it waits up to a second for the thread that does.

    They serve automations of a server that somebody else keeps; at a home's own, a later command finds killed runs.
    """
    from prefect.context import SettingsContext, get_settings_context  # noqa: PLC0415

    # Prefect's `temporary_settings` validates all settings again, which takes longer than the flow's requests.
    known = get_settings_context()
    flows = known.settings.flows.model_copy(update={"heartbeat_frequency": None})
    with SettingsContext(profile=known.profile, settings=known.settings.model_copy(update={"flows": flows})):
        yield


@contextlib.contextmanager
def prefect_api(home: Home, *, schedules: bool = False) -> Generator[Callable[[], None]]:
    """Prefect's API for flows that this process runs: the server that was named, or the one of this home.

    Yields a function to call once the flows are imported: it waits until the server may be spoken to.
    A server that somebody named is used as it is; this home's secret is sent to this home's server alone.
    """
    named = _named_api(home)
    if named:
        key = "" if os.environ.get("PREFECT_API_AUTH_STRING") else lent_secret(home.root, named)
        with _environment({"PREFECT_API_AUTH_STRING": key} if key else {}):
            yield lambda: None
        return
    # Its lease ends with this process, not here: Prefect sends the last events when the interpreter ends.
    connection = connect(home.root, schedules=schedules)
    known = {"PREFECT_API_URL": f"{connection.address}/api", "PREFECT_API_AUTH_STRING": connection.secret}
    with _environment(known):
        try:
            yield connection.wait
        except GradusError:
            raise
        except Exception:
            if connection.lost:
                raise connection.explain() from None
            raise


def _named_api(home: Home) -> str:
    """The API that the environment or a profile of Prefect's names; empty if none does."""
    if os.environ.get("PREFECT_API_URL"):
        return os.environ["PREFECT_API_URL"]
    profiles = home.prefect / "profiles.toml"
    if not profiles.is_file():
        return ""
    return "the profile's" if "PREFECT_API_URL" in profiles.read_text(encoding="utf-8") else ""


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Generator[None]:
    """Set environment variables for a while, then put back what stood there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
