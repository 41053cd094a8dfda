"""The door of a server on loopback: its own names, its own pages, and a question by which it proves whose it is.

    app = guarded(app)      # an ASGI application; settings from the environment, see `prefect_server`

Refused before the application sees it: a request under another host name (DNS rebinding) and one from a page of another
origin, whatever its method, websockets included. `IDENTITY` is open to all: by it a client finds out whether the server
is the one of its home before it sends the secret. The application checks the secret of requests.
"""

import os
import time
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gradus.tasks.servers.found_servers import IDENTITY, IDLE, LEASE, NONCE_DIGITS, leave_when_idle
from gradus.tasks.servers.secret import proof


class Door:
    """ASGI middleware: refuse pages of other origins, answer the question of identity, note the last request."""

    def __init__(self, app: ASGIApp, *, key: str, address: str, prefect_home: str, origins: frozenset[str]) -> None:
        self._app = app
        self._key = key
        self._address = address
        self._prefect_home = prefect_home
        self._origins = origins
        self.last_request_s = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one connection."""
        if scope["type"] in ("http", "websocket"):
            origins = Headers(scope=scope).getlist("origin")
            if any(origin not in self._origins for origin in origins):
                await PlainTextResponse("Foreign origin", status_code=403)(scope, receive, send)
                return
            if scope["path"] == IDENTITY:
                await self._identify(scope)(scope, receive, send)
                return
            self.last_request_s = time.monotonic()
        await self._app(scope, receive, send)

    def _identify(self, scope: Scope) -> PlainTextResponse | JSONResponse:
        nonce = "".join(parse_qs(scope["query_string"].decode("latin-1")).get("nonce", []))
        if len(nonce) != NONCE_DIGITS or not set(nonce) <= set("0123456789abcdef"):
            return PlainTextResponse("No nonce", status_code=400)
        return JSONResponse({"proof": proof(self._key, nonce, self._address, self._prefect_home)})


def guarded(app: ASGIApp) -> ASGIApp:
    """Put an application behind the door; if the environment names a lease, the server leaves when nobody uses it."""
    given = os.environ
    door = Door(
        app,
        key=given["PREFECT_SERVER_API_AUTH_STRING"],
        address=given["PREFECT_API_URL"].removesuffix("/api"),
        prefect_home=given["PREFECT_HOME"],
        origins=frozenset(given["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"].split(",")),
    )
    if LEASE in given:
        leave_when_idle(Path(given[LEASE]), float(given[IDLE]), lambda: door.last_request_s)
    return TrustedHostMiddleware(door, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False)
