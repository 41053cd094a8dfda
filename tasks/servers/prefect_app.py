"""Prefect's server behind the door of gradus.tasks.servers.door; Prefect itself refuses requests without the secret.

    uvicorn --factory gradus.tasks.servers.prefect_app:create --fd N    # `prefect_server` sets the environment

The secret comes with HTTP's basic authentication, on websockets in the first message. Without it there are the files of
the user interface and `/api/health`.
"""

import asyncio
import logging
from collections.abc import Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

from starlette.types import ASGIApp

from gradus.tasks.host.libraries import ignore_setting_files, lean_imports
from gradus.tasks.servers.door import guarded

ignore_setting_files()  # before Prefect is imported: the files of its folder are not for it
with lean_imports():
    from docket import Worker
    from prefect.server.api import background_workers
    from prefect.server.api.server import create_app
    from prefect.server.events.models import automations

_LOOKS_EVERY = timedelta(seconds=1)
"""Interval at which the server looks for background tasks that are due; Prefect's 0.25 s, which no setting changes,
take 2.7 % of a core while nothing runs."""
_updates = set[asyncio.Task[None]]()
"""Running updates of Prefect's cache of automations, which asyncio alone would not keep alive."""


def update_later(update: Coroutine[Any, Any, object]) -> None:
    """Update the cache of automations in the server's own event loop, after the commit that asks for it.

    Prefect 3.7.7 waits for it there, in the thread of that loop, and the update waits for a lock that another task of
    the loop may hold: from then on the server answers nobody (PrefectHQ/prefect issue 23055).
    """
    task = asyncio.get_running_loop().create_task(_updated(update))
    _updates.add(task)
    task.add_done_callback(_updates.discard)


async def _updated(update: Coroutine[Any, Any, object]) -> None:
    try:
        await update
    except Exception:
        logging.getLogger(__name__).exception("the cache of automations is not up to date")


def create() -> ASGIApp:
    """Make the application from the environment."""
    automations.run_coro_as_sync = update_later  # pyright: ignore[reportPrivateImportUsage]
    background_workers.Worker = partial(  # pyright: ignore[reportPrivateImportUsage]
        Worker, minimum_check_interval=_LOOKS_EVERY, scheduling_resolution=_LOOKS_EVERY
    )
    return guarded(create_app())
