"""Requests to our servers by others than their owner: another account, a page of another origin.

answers(url, mlflow_routes(), uid=65534)       # the status of each, asked by a process of another account
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

NOBODY = 65534
Route = tuple[str, str]
"""A method, `WS` of a websocket, and a path."""

_WALK = """
import json, os, sys
def walk(routes, prefix=""):
    for route in routes:
        path = prefix + getattr(route, "path", "")
        if getattr(route, "routes", None):
            yield from walk(route.routes, path)
        elif "WebSocket" in type(route).__name__:
            yield "WS", path
        else:
            for method in getattr(route, "methods", None) or ["GET"]:
                yield method, path
"""
_MLFLOW = """
os.environ["_MLFLOW_SERVER_SERVE_ARTIFACTS"] = "true"
from mlflow.server.fastapi_app import app
from mlflow.server import app as flask
found = set(walk(app.routes)) | {(m, rule.rule) for rule in flask.url_map.iter_rules() for m in rule.methods}
"""
_PREFECT = """
from prefect.server.api.server import create_app
found = set(walk(create_app().routes))
"""
_ASK = """
import encodings.idna, http.client, json, os, sys
address, uid, headers, routes = json.load(sys.stdin)
if uid is not None:
    os.setgroups([]), os.setresgid(uid, uid, uid), os.setresuid(uid, uid, uid)
    assert os.getuid() == os.geteuid() == uid
upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
           "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
found = []
for method, path in routes:
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        if method == "WS":
            connection.request("GET", path, headers={**headers, **upgrade})
        else:
            connection.request(method, path, None if method in ("GET", "HEAD") else "{}", headers)
        found.append(connection.getresponse().status)
    except (OSError, http.client.HTTPException):
        found.append(0)
    connection.close()
print(json.dumps(found))
"""


def _run(code: str, given: object = None) -> Any:
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _routes(code: str) -> list[Route]:
    found = _run(f"{_WALK}{code}print(json.dumps(sorted(found)))")
    return [(method, re.sub(r"\{[^}]*\}|<[^>]*>", "0", path) or "/") for method, path in found]


def mlflow_routes() -> list[Route]:
    """Every route of MLflow's own server, also of what ours leaves out."""
    return _routes(_MLFLOW)


def prefect_routes() -> list[Route]:
    """Every route of Prefect's server: API, pages, websockets."""
    return _routes(_PREFECT)


def answers(
    url: str, routes: Sequence[Route], headers: Mapping[str, str] | None = None, uid: int | None = None
) -> list[int]:
    """Return the status of each route, in order, 0 if there is none; asked by a process of another account if named."""
    return _run(_ASK, [url.partition("://")[2], uid, dict(headers or {}), routes])
