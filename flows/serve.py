"""Deployments: every flow under its name, with parameters; `train` also with a paused example schedule.

gradus serve                                            # in one terminal
prefect deployment run 'score/score' -p rollouts=...    # in another, with PREFECT_API_URL set

A new start of `serve` keeps a user's changes in Prefect (schedules, parameters, tags, a paused deployment, its limits)
and renews the flow's location, the schema of its parameters and its description.
"""

import functools
import os
import shlex
from typing import ParamSpec, TypeVar, cast
from uuid import UUID

from prefect import serve as prefect_serve
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.runner import runner
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.settings import PREFECT_UI_URL
from prefect.types.entrypoint import EntrypointType

from gradus.flows import comparison, deployed, exchange, stages
from gradus.flows.agreement.flow import agree, bisect
from gradus.flows.console.output import line
from gradus.flows.laboratory.flow import lab
from gradus.flows.notifications import HEARTBEAT_S, notify
from gradus.flows.served_run import COMMAND
from gradus.tasks.config.settings import Home
from gradus.tasks.host.processes import child_environment
from gradus.tasks.servers.abandoned_runs import close_abandoned, close_unbegun, left_behind
from gradus.tasks.stages import registry

P = ParamSpec("P")
R = TypeVar("R")

NIGHTLY = DeploymentScheduleCreate(
    schedule=CronSchedule(cron="0 2 * * *", timezone="UTC"),
    active=False,
    slug="nightly",
    parameters={"recipe": "demo"},
)
"""The example schedule: every night at two, paused until a user resumes it."""

THEIRS = frozenset({"schedules", "parameters", "paused", "tags", "concurrency_limit", "concurrency_options"})
"""Fields of a deployment that are left as they are once it exists."""


def deployments() -> list[RunnerDeployment]:
    """Return one deployment for each flow; `train` carries the example schedule."""
    flows = [stages.stage_flow(each.name) for each in registry.stages().values() if each.verb]
    flows += [stages.profile, stages.evaluate]
    others = [
        _deployment(comparison.compare),
        _deployment(lab),
        _deployment(agree),
        _deployment(bisect),
        _deployment(exchange.import_rollouts),
    ]
    return [*(_deployment(flow) for flow in flows), _deployment(deployed.train, schedules=[NIGHTLY]), *others]


def serve_all(webhook: str = "") -> None:
    """Close runs that a killed `serve` left, then serve every deployment until stopped.

    `webhook` is called for every training that fails; without one, the webhook of an earlier `serve` stays.
    """
    home = Home.from_environment()
    if webhook:
        notify(webhook)
    close_abandoned(left_behind(home.runs))
    found = deployments()
    close_unbegun(_keep_theirs(found))
    # The process of a run imports the flow by its name, from whatever folder this is.
    os.environ |= child_environment()
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", str(HEARTBEAT_S))
    # `serve` takes no command: the name that Prefect's runner knows its starter by stands for one that has ours.
    starter = functools.partial(EngineCommandStarter, command=shlex.join(COMMAND))
    runner.EngineCommandStarter = starter  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    line(f"serving {', '.join(each.name for each in found)}; Ctrl-C stops it.")
    prefect_serve(*found, pause_on_shutdown=False, print_starting_message=False)


def pages() -> str:
    """Return the address of the pages of the Prefect server that is used."""
    return PREFECT_UI_URL.value()


def _deployment(flow: Flow[P, R], schedules: list[DeploymentScheduleCreate] | None = None) -> RunnerDeployment:
    made = flow.to_deployment(
        flow.name,
        tags=["gradus"],
        description=(flow.description or "").partition("\n\nArgs:")[0],
        entrypoint_type=EntrypointType.MODULE_PATH,
        schedules=schedules,
    )
    return cast("RunnerDeployment", made)


def _keep_theirs(found: list[RunnerDeployment]) -> list[UUID]:
    """Remove the fields that a user may have changed from existing deployments; return their ids.

    Prefect sends what was set: a schedule that is sent is put back, and without one every schedule is removed that has
    no slug, as those made in its pages.
    """
    known: list[UUID] = []
    with get_client(sync_client=True) as client:
        for deployment in found:
            try:
                known.append(client.read_deployment_by_name(deployment.full_name).id)
            except ObjectNotFound:
                continue
            deployment.schedules = None
            deployment.model_fields_set.difference_update(THEIRS)
    return known
