"""The environment that Prefect and MLflow must find before they are imported."""

import contextlib
import os
from collections.abc import Generator

from tasks.servers import start_embedded
from tasks.settings import Home


def prepare(home: Home) -> None:
    """Point Prefect at the home folder, keep it quiet and local; settings that a person made stay."""
    defaults = {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(home.prefect / "results"),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PREFECT_API_REQUEST_TIMEOUT": "180",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        "PREFECT_SERVER_API_HOST": "127.0.0.1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    home.prefect.mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def prefect_api(home: Home) -> Generator[None]:
    """Prefect's API for flows that this process runs: the server that was named, or one of its own."""
    profiles = home.prefect / "profiles.toml"
    named = profiles.is_file() and "PREFECT_API_URL" in profiles.read_text(encoding="utf-8")
    if named or os.environ.get("PREFECT_API_URL"):
        yield
        return
    with start_embedded(home.root) as server:
        os.environ["PREFECT_API_URL"] = f"{server.url}/api"
        try:
            yield
        finally:
            del os.environ["PREFECT_API_URL"]
