"""An application behind the door that starts in a moment, in the place of Prefect's."""

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from gradus.tasks.servers.door import guarded


def create() -> ASGIApp:
    app = Starlette(routes=[Route("/", lambda _request: PlainTextResponse("here"))])
    return guarded(app)
