"""Changes to Prefect's server: a commit waits for no lock of its loop (PrefectHQ/prefect issue 23055), less polling."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from tests.patience import until

CODE = """
import asyncio
from types import SimpleNamespace

from gradus.tasks.servers import prefect_app
from prefect.server.events import triggers
from prefect.server.events.models import automations
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

prefect_app.guarded = lambda *arguments, **named: None
prefect_app.create_app = lambda: None
if {patched}:
    prefect_app.create()
seen = []


async def changed(automation_id, event):
    async with triggers._automations_lock():
        seen.append((automation_id, event))


async def main():
    triggers.automation_changed = changed
    engine = create_async_engine("sqlite+aiosqlite://")
    async with AsyncSession(engine) as session:
        await session.execute(text("select 1"))
        await automations._notify(session, SimpleNamespace(id=7), "created")
        async with triggers._automations_lock():
            print("commits", flush=True)
            await session.commit()
            print("committed", seen, flush=True)
        while not seen:
            await asyncio.sleep(0.01)
    print("updated", seen, flush=True)
    await engine.dispose()


asyncio.run(main())
"""


INTERVALS = """
import asyncio

from docket import Docket, Worker
from gradus.tasks.servers import prefect_app
from prefect.server.api.background_workers import background_worker

prefect_app.guarded = lambda *arguments, **named: None
prefect_app.create_app = lambda: None
prefect_app.create()


async def run_forever(worker):
    print(worker.minimum_check_interval.total_seconds(), worker.scheduling_resolution.total_seconds())

Worker.run_forever = run_forever


async def main():
    async with Docket(name="d", url="memory://d") as docket, background_worker(docket, ephemeral=True):
        await asyncio.sleep(0.1)


asyncio.run(main())
"""


def environment_of(folder: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[3] / "src"),
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_API_AUTH_STRING": "a:b",
        "PREFECT_API_URL": "http://127.0.0.1:1/api",
    }


def lines_of(tmp_path: Path, *, patched: bool) -> list[str]:
    """What the program says until it ends, or until five seconds after it began to commit."""
    log = tmp_path / "said"
    command = [sys.executable, "-P", "-c", CODE.format(patched=patched)]
    with (
        log.open("w") as said,
        subprocess.Popen(command, env=environment_of(tmp_path), stdout=said, stderr=said) as process,
    ):
        try:
            until(lambda: process.poll() is not None or "commits" in log.read_text(), wrong=log.read_text)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        finally:
            process.kill()
    return log.read_text().splitlines()


def test_a_change_of_an_automation_is_committed_although_another_task_holds_the_lock(tmp_path: Path) -> None:
    said = lines_of(tmp_path, patched=True)
    assert said == ["commits", "committed []", "updated [(7, 'automation__created')]"]


def test_prefect_alone_waits_for_ever(tmp_path: Path) -> None:
    """If this fails, Prefect has mended it, and `update_later` can go."""
    assert lines_of(tmp_path, patched=False) == ["commits"]


def test_prefect_looks_for_background_tasks_every_second(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", INTERVALS]
    environment = environment_of(tmp_path)
    said = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    assert said.stdout.splitlines() == ["1.0 1.0"], said.stderr
