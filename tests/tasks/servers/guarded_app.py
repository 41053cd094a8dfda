"""An application behind the door that starts in a moment, in the place of Prefect's."""

import os

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from gradus.tasks.servers.door import guarded


def create() -> ASGIApp:
    app = Starlette(routes=[Route("/", lambda _request: PlainTextResponse("here"))])
    address, folder = os.environ["PREFECT_API_URL"].removesuffix("/api"), os.environ["PREFECT_HOME"]
    return guarded(app, key=os.environ["PREFECT_SERVER_API_AUTH_STRING"], address=address, folder=folder)
