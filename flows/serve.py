"""Deployments: every flow under its name, with parameters; `train` also with a paused example schedule.

gradus serve                                            # in one terminal
prefect deployment run 'score/score' -p rollouts=...    # in another, with PREFECT_API_URL set
"""

from collections.abc import Callable
from typing import Any, cast

from prefect import serve as prefect_serve
from prefect.deployments.runner import RunnerDeployment
from prefect.flows import Flow
from prefect.schedules import Cron

from flows import runs, stages

NIGHTLY = Cron("0 2 * * *", timezone="UTC", active=False)
"""The example schedule: every night at two, paused until somebody wants it."""


def deployments() -> list[RunnerDeployment]:
    """One deployment for each flow; `train` carries the example schedule."""
    flows: list[Flow[..., Any]] = [
        stages.ingest,
        stages.hint,
        stages.curate,
        stages.rollout,
        stages.score,
        stages.update,
        stages.warmstart,
        stages.profile,
        stages.evaluate,
    ]
    found = [cast("RunnerDeployment", flow.to_deployment(flow.name, tags=["gradus"])) for flow in flows]
    nightly = runs.train_flow.to_deployment("train", tags=["gradus"], schedule=NIGHTLY)
    return [*found, cast("RunnerDeployment", nightly)]


def serve_all(serve: Callable[..., None] = prefect_serve) -> None:
    """Serve every deployment until stopped."""
    serve(*deployments(), pause_on_shutdown=False)
