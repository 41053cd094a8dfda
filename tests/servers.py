"""The processes that keep and run the servers of a home, and the workers of a command."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import NamedTuple

import psutil

from gradus.tasks.servers.connection import Connection, connect
from gradus.tasks.servers.keeper import KEEPER, Server


class Served(NamedTuple):
    """A server of a home: its URL without a path, its keeper, and its own process; 0 while it has none."""

    address: str
    keeper: int
    server: int


def served(home: Path, name: str = "Prefect") -> list[Served]:
    """Every server of a home by this name that has a keeper."""
    found: list[Served] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.cmdline()[-1:] == ["gradus.tasks.servers.keeper"]:
                server = json.loads(process.environ()[KEEPER])["server"]
                listening = [c.laddr for c in process.net_connections("tcp4") if c.status == psutil.CONN_LISTEN]
                if (server["home"], server["name"]) == (str(home), name) and listening:
                    children = [child.pid for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]
                    found.append(Served(f"http://127.0.0.1:{listening[0].port}", process.pid, *(children or [0])))
    return found


def servers(home: Path) -> list[int]:
    """The processes that serve a home, kept or not."""
    found: list[int] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = json.loads(process.environ().get(KEEPER, "null"))
            if ours and ours["server"]["home"] == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found += [process.pid] if "uvicorn" in process.cmdline() else []
    return found


def a_server(home: Path, app: str, **environment: str) -> Connection:
    """Use a server of a home that is another application, in the place of MLflow's."""
    kind = {"name": "MLflow", "app": app, "folder": str(home), "database": "", "pages": True, "idle_s": 0.0}
    server: Server = {"home": str(home), **kind}  # pyright: ignore[reportAssignmentType]
    return connect(server, lambda _server, _address: environment)


def workers_of(pid: int) -> list[psutil.Process]:
    """Return the living workers of a process."""
    found: list[psutil.Process] = []
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may end meanwhile
            found += [child] if "gradus.tasks.runtime.worker" in child.cmdline() else []
    return found


def kill(pid: int) -> None:
    """Kill a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
