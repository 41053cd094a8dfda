"""Prefect's server behind the door of gradus.tasks.servers.door; Prefect itself refuses requests without the secret.

    uvicorn --factory gradus.tasks.servers.prefect_app:create --fd N    # `prefect_server` sets the environment

The secret comes with HTTP's basic authentication, on websockets in the first message. Without it there are the files of
the user interface, `/api/health` and the question of identity.
"""

from prefect.server.api.server import create_app
from starlette.types import ASGIApp

from gradus.tasks.servers.door import guarded


def create() -> ASGIApp:
    """Make the application from the environment."""
    return guarded(create_app())
