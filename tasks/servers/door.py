"""Access to a server on loopback: by its own host names, from its own pages, with a proof of its home.

    app = guarded(app, key=secret(home), address="http://127.0.0.1:5000", folder=str(home))      # any ASGI application

Refused before the application sees it: a request under another host name (DNS rebinding) and one from a page of another
origin, whatever its method, websockets included. `IDENTITY` is open to all: by it a client finds out whether the server
is the one of its home before it sends the secret. Prefect checks the secret of requests itself; `Login` does it for an
application that does not.
"""

import base64
import hmac
import os
import time
from pathlib import Path
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gradus.tasks.servers.found_servers import IDENTITY, IDLE, LEASE, NONCE_DIGITS, leave_when_idle
from gradus.tasks.servers.secret import USER, proof

HEALTH = "/health"
_OWN_SITES = ("same-origin", "none")


class Door:
    """ASGI middleware: refuse pages of other origins, answer the question of identity, note the last request."""

    def __init__(self, app: ASGIApp, *, key: str, address: str, folder: str) -> None:
        port = address.rpartition(":")[2]
        self._app = app
        self._key = key
        self._address = address
        self._folder = folder
        self._origins = frozenset({f"http://127.0.0.1:{port}", f"http://localhost:{port}"})
        self.last_request_s = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass on one connection."""
        if scope["type"] in ("http", "websocket"):
            if self._is_foreign(Headers(scope=scope)):
                await PlainTextResponse("Foreign origin", status_code=403)(scope, receive, send)
                return
            if scope["path"] == IDENTITY:
                await self._identify(scope)(scope, receive, send)
                return
            self.last_request_s = time.monotonic()
        await self._app(scope, receive, send)

    def _is_foreign(self, headers: Headers) -> bool:
        """Return whether a page of another origin asks.

        A browser names no origin when a page loads a picture, a script or a frame, and sends the password that it
        keeps all the same; there it names the site. A link to a page of ours may stand anywhere.
        """
        origins = headers.getlist("origin")
        if origins:
            return any(origin not in self._origins for origin in origins)
        return headers.get("sec-fetch-site", "none") not in _OWN_SITES and headers.get("sec-fetch-dest") != "document"

    def _identify(self, scope: Scope) -> PlainTextResponse | JSONResponse:
        nonce = "".join(parse_qs(scope["query_string"].decode("latin-1")).get("nonce", []))
        if len(nonce) != NONCE_DIGITS or not set(nonce) <= set("0123456789abcdef"):
            return PlainTextResponse("No nonce", status_code=400)
        return JSONResponse({"proof": proof(self._key, nonce, self._address, self._folder)})


class Login:
    """ASGI middleware: ask each request for the secret, by HTTP's basic authentication; `HEALTH` is open to all."""

    def __init__(self, app: ASGIApp, *, key: str) -> None:
        self._app = app
        self._known = basic(key).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request that knows the secret; refuse others, and websockets."""
        if scope["type"] == "http" and scope["path"] != HEALTH:
            given = Headers(scope=scope).get("authorization", "")
            if not hmac.compare_digest(given.encode("latin-1"), self._known):
                asking = {"WWW-Authenticate": 'Basic realm="Gradus", charset="UTF-8"'}
                await PlainTextResponse("A password is needed", 401, asking)(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            await PlainTextResponse("No websockets here", 403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def basic(key: str) -> str:
    """Return the header `Authorization` with the secret."""
    return f"Basic {base64.b64encode(f'{USER}:{key}'.encode()).decode()}"


def guarded(app: ASGIApp, *, key: str, address: str, folder: str) -> ASGIApp:
    """Guard an application; if the environment names a lease, the server exits when it is idle."""
    door = Door(app, key=key, address=address, folder=folder)
    if LEASE in os.environ:
        leave_when_idle(Path(os.environ[LEASE]), float(os.environ[IDLE]), lambda: door.last_request_s)
    return TrustedHostMiddleware(door, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False)
