"""Deployments: every flow under its name, with parameters; `train` also with a paused example schedule.

    gradus serve                                            # in one terminal
    prefect deployment run 'score/score' -p rollouts=...    # in another, with PREFECT_API_URL set

A new start of `serve` keeps a user's changes in Prefect (schedules, parameters, tags, a paused deployment, its limits)
and renews the flow's location, the schema of its parameters and its description.

With a webhook there are two automations of Prefect: one calls it for a training that failed, the other ends a training
whose process was killed, which sends no heart-beats. Prefect keeps the address as a Webhook block, whose field is
secret. Automations are found by name, so that serving twice makes none twice; one that was switched off stays off.
"""

import functools
import os
import shlex
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, cast
from uuid import UUID

from prefect import serve as prefect_serve
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.events.actions import ActionTypes, CallWebhook, ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow
from prefect.runner import runner
from prefect.runner._starter_engine import EngineCommandStarter
from prefect.types.entrypoint import EntrypointType
from pydantic import SecretStr

from gradus.flows import comparison, deployed, exchange, stages
from gradus.flows.agreement.flow import agree, bisect
from gradus.flows.console.output import line
from gradus.flows.laboratory.flow import lab
from gradus.flows.served_run import COMMAND
from gradus.tasks.config.settings import Home
from gradus.tasks.host.processes import child_environment
from gradus.tasks.runs.history import AGAIN
from gradus.tasks.servers.abandoned_runs import close_abandoned, close_unbegun, left_behind
from gradus.tasks.stages import registry

P = ParamSpec("P")
R = TypeVar("R")

NIGHTLY = DeploymentScheduleCreate(
    schedule=CronSchedule(cron="0 2 * * *", timezone="UTC"), active=False, slug="nightly", parameters={"recipe": "demo"}
)
"""The example schedule: every night at two, paused until a user resumes it."""

THEIRS = frozenset({"schedules", "parameters", "paused", "tags", "concurrency_limit", "concurrency_options"})
"""Fields of a deployment that are left as they are once it exists."""


FLOW = "train"
BLOCK = "gradus-failed-training"
FAILED, KILLED = "gradus: a training failed", "gradus: a training was killed"
HEARTBEAT_S = 30
"""The most often that Prefect sends one."""
SILENT_S = 3 * HEARTBEAT_S
"""Silence after which a run is reported as crashed."""
PAYLOAD = '{"text": {{ (flow_run.name ~ ": " ~ flow_run.state.message) | tojson }}}'
"""Body of a notification, a template of Prefect's: the field that Slack, Mattermost and Discord's /slack URLs read."""

_ENDS = {f"prefect.flow-run.{state}" for state in ("Completed", "Failed", "Crashed", "Cancelled", "Cancelling")}


def deployments() -> list[RunnerDeployment]:
    """Return one deployment for each flow; `train` carries the example schedule."""
    flows = [stages.stage_flow(each.name) for each in registry.stages().values() if each.verb]
    flows += [stages.profile, stages.evaluate]
    others: list[Flow[..., Any]] = [comparison.compare, lab, agree, bisect, exchange.import_rollouts]
    return [*map(_deployment, flows), _deployment(deployed.train, schedules=[NIGHTLY]), *map(_deployment, others)]


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


def notify(url: str) -> None:
    """Have Prefect call a webhook for every training that fails, with its name and its sentence."""
    block = Webhook(url=SecretStr(url)).save(BLOCK, overwrite=True)
    assert isinstance(block, UUID)  # a coroutine only in asynchronous flows
    _keep(
        FAILED,
        "Calls the webhook with the sentence of a training that failed; see `gradus serve --notify`.",
        _trigger(posture=Posture.Reactive, expect={"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}),
        CallWebhook(block_document_id=block, payload=PAYLOAD),
    )
    _keep(
        KILLED,
        f"Ends a training in Prefect whose process has sent no heart-beat for {SILENT_S} s.",
        _trigger(
            posture=Posture.Proactive,
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.heartbeat", *_ENDS},
            within=timedelta(seconds=SILENT_S),
        ),
        ChangeFlowRunState(
            name=None,
            state=StateType.CRASHED,
            force=False,
            message=f"the process was killed: no heart-beat for {SILENT_S} s; {AGAIN}",
        ),
    )


def _trigger(**which: Any) -> EventTrigger:
    """Return a trigger by one event of each flow run of a training."""
    return EventTrigger(
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.role": "flow", "prefect.resource.name": FLOW},
        for_each={"prefect.resource.id"},
        threshold=1,
        **which,
    )


def _keep(name: str, description: str, trigger: EventTrigger, action: ActionTypes) -> None:
    """Create an automation, or bring the one of that name up to date; whether it is switched on stays."""
    wanted = AutomationCore(name=name, description=description, trigger=trigger, actions=[action])
    with get_client(sync_client=True) as client:
        if known := client.read_automations_by_name(name):
            client.update_automation(known[0].id, wanted.model_copy(update={"enabled": known[0].enabled}))
        else:
            client.create_automation(wanted)
