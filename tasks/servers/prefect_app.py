"""Prefect's server behind the door of gradus.tasks.servers.door; Prefect itself refuses requests without the secret.

    uvicorn --factory gradus.tasks.servers.prefect_app:create --fd N    # `prefect_server` sets the environment

The secret comes with HTTP's basic authentication, on websockets in the first message. Without it there are the files of
the user interface, `/api/health` and the question of identity.
"""

import os

from gradus.tasks.host.setting_files import ignore_setting_files

ignore_setting_files()

from prefect.server.api.server import create_app  # noqa: E402 - the files of its folder are not for it
from starlette.types import ASGIApp  # noqa: E402

from gradus.tasks.servers.door import guarded  # noqa: E402


def create() -> ASGIApp:
    """Make the application from the environment."""
    given = os.environ
    return guarded(
        create_app(),
        key=given["PREFECT_SERVER_API_AUTH_STRING"],
        address=given["PREFECT_API_URL"].removesuffix("/api"),
        folder=given["PREFECT_HOME"],
    )
