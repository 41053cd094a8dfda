"""One notification for a training that failed, and an end for one whose process was killed: Prefect automations.

    notify("https://hooks.example/T0/B0")     # `gradus serve --notify URL`; again with another address to change it

The address is kept by Prefect as a Webhook block, whose field is secret in its pages. Both automations are found by
their names and brought up to date, so that serving twice makes neither twice; one that was switched off stays off. A
killed process is noticed by the heart-beats that Prefect's runs send every HEARTBEAT_S seconds.
"""

from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ActionTypes, CallWebhook, ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from pydantic import SecretStr

from gradus.tasks.runs.history import AGAIN

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
        known = client.read_automations_by_name(name)
        if known:
            client.update_automation(known[0].id, wanted.model_copy(update={"enabled": known[0].enabled}))
        else:
            client.create_automation(wanted)
