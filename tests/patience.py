"""Waiting: for a Prefect server whose SQLite database another process may be writing, and for other processes."""

import contextlib
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil

BUSY_LIMIT_S = 60.0
_PAUSE_S = 0.5


class Patient(httpx.HTTPTransport):
    """Repeat a request that is answered with 503, Prefect's answer while its database is locked.

    It is repeated until another answer comes or `limit_s` seconds have passed; then the 503 is the answer.
    """

    def __init__(self, limit_s: float = BUSY_LIMIT_S) -> None:
        super().__init__()
        self._limit_s = limit_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        until = time.monotonic() + self._limit_s
        while True:
            response = super().handle_request(request)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() + _PAUSE_S > until:
                return response
            response.close()
            time.sleep(_PAUSE_S)


def patient_client(**settings: Any) -> httpx.Client:
    """Return a client of httpx with this transport; 300 s for each answer, no proxy."""
    return httpx.Client(transport=Patient(), timeout=300, **settings)


def until(found: Callable[[], Any], limit_s: float = 300, pause_s: float = 0.05, wrong: Callable[[], str] = str) -> Any:
    """Return what is found, once it is true; raise AssertionError with what is wrong after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not (result := found()):
        assert time.monotonic() < deadline, wrong()
        time.sleep(pause_s)
    return result


def quiet_port() -> int:
    """Return a free port of 127.0.0.1 that no connection of another test is given meanwhile.

    A port that the system chooses is one of those that it gives to outgoing connections, from 32768 on.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def runs(pid: int) -> bool:
    """Return whether a process has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
