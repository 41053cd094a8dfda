"""The two servers of a home: Prefect's, which its commands use, and MLflow's, which `gradus ui` starts.

    connection = connect(home)          # at once: early requests wait
    import gradus.flows.stages          # seconds, while the server imports what it needs
    connection.wait()

What is sent to the address of a connection reaches the server of this home, or nobody (gradus.tasks.servers.keeper).
"""

import contextlib
import hashlib
import os
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from gradus.data.package import package_file
from gradus.tasks.config.settings import server_idle_s
from gradus.tasks.host.home_folder import USER, secret
from gradus.tasks.host.libraries import prefect_files
from gradus.tasks.servers import connection
from gradus.tasks.servers.connection import LOOPBACK, Connection, folder_of
from gradus.tasks.servers.keeper import Server
from gradus.tasks.tracking.client import database, tracking_uri

PAGES_PORT = 4200
"""The preferred port of a Prefect server with pages; if it is taken, one of the twenty from there."""
PREFECT_APP = "gradus.tasks.servers.prefect_app:create"
_STOP_S = 10.0


class Addresses(NamedTuple):
    """URLs of running servers."""

    prefect_url: str
    mlflow_url: str


@contextlib.contextmanager
def start_servers(home: Path, prefect_port: int = PAGES_PORT, mlflow_port: int = 5000) -> Generator[Addresses]:
    """Start both servers and wait until they answer; they end with this block unless another command uses them.

    Servers of this home that run already are used (Prefect's if it has pages), and one that MLFLOW_TRACKING_URI names.
    """
    with contextlib.ExitStack() as running:
        used = [connect(home, pages=True, port=prefect_port, idle_s=0.0)]
        running.callback(used[0].close, wait_s=_STOP_S)
        mlflow_url = tracking_uri(home)
        if urlsplit(mlflow_url).scheme not in ("http", "https"):
            used.append(start_mlflow(home, mlflow_port))
            running.callback(used[1].close, wait_s=_STOP_S)
            mlflow_url = used[1].address
        for each in used:
            each.wait()
        yield Addresses(used[0].address, mlflow_url)


def connect(home: Path, *, pages: bool = False, port: int = PAGES_PORT, idle_s: float | None = None) -> Connection:
    """Use or start Prefect's server, with `pages` and scheduled runs; StageError if others could know the secret."""
    secret(home)
    server: Server = {
        "home": str(home.absolute()),
        "name": "Prefect",
        "app": PREFECT_APP,
        "database": prefect_database(home),
        "pages": pages,
        "idle_s": server_idle_s() if idle_s is None else idle_s,
        "folder": str(folder_of(home).absolute()),
    }
    return connection.connect(server, _prefect_environment, range(port, port + 20) if pages else ())


def join(home: Path, api_url: str) -> Connection | None:
    """Use Prefect's server at an address that the user named; None if it is not this home's own."""
    found = connection.join(home, "Prefect", api_url.rstrip("/").removesuffix("/api"))
    return Connection(found, _prefect_environment) if found else None


def start_mlflow(home: Path, port: int) -> Connection:
    """Use or start MLflow's server with the database and the artifacts of this home."""
    database(home).parent.mkdir(parents=True, exist_ok=True)
    secret(home)
    # An address of the user's may be relative to the current folder.
    folder = Path.cwd() if os.environ.get("MLFLOW_TRACKING_URI") else database(home).parent
    server: Server = {
        "home": str(home.resolve()),
        "name": "MLflow",
        "app": "gradus.tasks.servers.mlflow_app:create",
        "database": _digest(f"{tracking_uri(home)} {folder}"),
        "pages": True,
        "idle_s": 0.0,
        "folder": str(folder),
    }
    return connection.connect(server, _mlflow_environment, range(port, port + 20))


def mlflow_login(home: Path, uri: str) -> dict[str, str]:
    """Return the environment variables of MLflow's client if a server is this home's own; else none.

    It is known by IP address alone: `localhost` may have a second address with another listener.
    """
    parts = urlsplit(uri)
    found = connection.join(home, "MLflow", f"{parts.scheme}://{parts.netloc}")
    if found is None:
        return {}
    found.close()
    return {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": secret(home)}


def prefect_home(home: Path) -> str:
    """The folder of Prefect's database: PREFECT_HOME, or `prefect` in this home; without symbolic links."""
    return os.path.realpath(os.environ.get("PREFECT_HOME") or home / "prefect")


def prefect_database(home: Path) -> str:
    """Prefect's version, its folder, and a digest of the setting of its database, which may hold a password."""
    url = os.environ.get("PREFECT_API_DATABASE_CONNECTION_URL", "")
    return f"{version('prefect')} {prefect_home(home)} {_digest(url) if url else ''}"


def server_environment() -> dict[str, str]:
    """Return the settings of mlflow/server.env; models are never unpickled, whatever stands there."""
    lines = package_file("mlflow", "server.env").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.lstrip().startswith("#"))
    return {**{key.strip(): value.strip() for key, value in pairs}, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}


def _prefect_environment(server: Server, address: str) -> dict[str, str]:
    home = Path(server["home"])
    key = secret(home)
    return {
        **prefect_files(),
        **({} if server["pages"] else {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}),
        "PREFECT_HOME": prefect_home(home),
        "PREFECT_API_URL": f"{address}/api",
        "PREFECT_UI_API_URL": f"{address}/api",
        "PREFECT_API_AUTH_STRING": key,
        "PREFECT_SERVER_API_AUTH_STRING": key,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{address},{address.replace(LOOPBACK, 'localhost')}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # Leases outlive a restart: one that is forgotten is neither renewed nor ended, and its slot stays taken.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT__SERVER_FINAL": "1",
    }


def _mlflow_environment(server: Server, address: str) -> dict[str, str]:
    own = address.removeprefix("http://")
    hosts = f"{own},{own.replace(LOOPBACK, 'localhost')}"
    return {**server_environment(), "GRADUS_HOME": server["home"], "MLFLOW_SERVER_ALLOWED_HOSTS": hosts}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
