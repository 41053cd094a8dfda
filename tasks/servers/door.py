"""Access to a server on loopback: by its own host names, from its own pages, with the secret of its home.

    app = guarded(app)      # any ASGI application

Refused before the application sees it: a request under another host name (DNS rebinding) and one from a page of another
origin, whatever its method, websockets included. Prefect checks the secret of requests itself; `with_login` does it for
an application that does not.
"""

import base64
import hmac
import os

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gradus.tasks.host.home_folder import USER
from gradus.tasks.host.processes import die_with_parent
from gradus.tasks.servers.keeper import PID

HEALTH = "/health"
_OWN_SITES = ("same-origin", "none")


def with_login(app: ASGIApp, key: str) -> ASGIApp:
    """Ask each request for the secret, by HTTP's basic authentication; refuse websockets. `HEALTH` is open to all."""
    known = basic(key).encode()

    async def asking(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] != HEALTH:
            given = Headers(scope=scope).get("authorization", "")
            if not hmac.compare_digest(given.encode("latin-1"), known):
                asked = {"WWW-Authenticate": 'Basic realm="Gradus", charset="UTF-8"'}
                await PlainTextResponse("A password is needed", 401, asked)(scope, receive, send)
                return
        elif scope["type"] == "websocket":
            await PlainTextResponse("No websockets here", 403)(scope, receive, send)
            return
        await app(scope, receive, send)

    return asking


def basic(key: str) -> str:
    """Return the header `Authorization` with the secret."""
    return f"Basic {base64.b64encode(f'{USER}:{key}'.encode()).decode()}"


def guarded(app: ASGIApp) -> ASGIApp:
    """Guard an application; a server that a keeper started is killed with it."""
    if PID in os.environ:
        die_with_parent(int(os.environ[PID]))

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        refused = scope["type"] in ("http", "websocket") and _is_foreign(scope)
        chosen = PlainTextResponse("Foreign origin", status_code=403) if refused else app
        await chosen(scope, receive, send)

    return TrustedHostMiddleware(door, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False)


def _is_foreign(scope: Scope) -> bool:
    """Return whether a page of another origin asks.

    A browser names no origin when a page loads a picture, a script or a frame, and sends the password that it
    keeps all the same; there it names the site. A link to a page of ours may stand anywhere.
    """
    headers = Headers(scope=scope)
    origins = headers.getlist("origin")
    if origins:
        _, port = scope["server"]
        return not {f"http://127.0.0.1:{port}", f"http://localhost:{port}"}.issuperset(origins)
    return headers.get("sec-fetch-site", "none") not in _OWN_SITES and headers.get("sec-fetch-dest") != "document"
