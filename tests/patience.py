"""Requests to a Prefect server whose SQLite database another process may be writing."""

import time
from typing import Any

import httpx

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
