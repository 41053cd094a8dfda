"""MLflow's server behind the door of gradus.tasks.servers.door, which asks each request for the secret of the home.

    uvicorn --factory gradus.tasks.servers.mlflow_app:create --port 5000    # `mlflow_server` sets the environment

Of MLflow's routes it has those of experiments, runs, models, datasets and traces, and the pages. Left out, and not
imported where MLflow keeps them apart: its assistant, which has a shell; its gateway, webhooks, scorers, jobs and MCP
servers, which call out or start something. A route that a later MLflow adds is left out until it is named here.
"""

import os
import re

from fastapi import FastAPI
from flask import Flask
from starlette.middleware.wsgi import WSGIMiddleware
from starlette.types import ASGIApp

from gradus.tasks.config.settings import Home
from gradus.tasks.host.home_folder import secret
from gradus.tasks.host.libraries import lean_imports
from gradus.tasks.servers.door import guarded, with_login
from gradus.tasks.tracking.client import artifacts_uri, tracking_uri

with lean_imports():
    from mlflow.server import app as whole
    from mlflow.server import constants
    from mlflow.server.artifact_router import artifact_router
    from mlflow.server.fastapi_security import init_fastapi_security
    from mlflow.server.handlers import initialize_backend_stores
    from mlflow.server.otel_api import otel_router
    from mlflow.server.server_info_api import server_info_router

_RESOURCES = (
    *("artifacts", "datasets", "experiments", "get-trace-artifact", "logged-models", "metrics", "model-versions"),
    *("registered-models", "runs", "traces", "upload-artifact"),
)
_PAGES = ("/", "/version", "/graphql", "/get-artifact", "/model-versions/get-artifact", "/static-files/<path:path>")
_SERVED = re.compile(
    rf"/(ajax-)?api/[\d.]+/(mlflow/({'|'.join(_RESOURCES)})|mlflow-artifacts/artifacts)(/.*)?"
    rf"|{'|'.join(map(re.escape, _PAGES))}"
)
_STARTS_SOMETHING = ("create-promptlab-run",)
_PROXIED = "mlflow-artifacts:/"


def create() -> ASGIApp:
    """Make the application from the environment: the home and its database."""
    home = Home.from_environment().root
    store = tracking_uri(home)
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: store,
        constants.ARTIFACT_ROOT_ENV_VAR: _PROXIED,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: artifacts_uri(home),
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
    }
    initialize_backend_stores(store, store, _PROXIED)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    init_fastapi_security(app)
    for router in (otel_router, artifact_router, server_info_router):
        app.include_router(router)
    app.mount("/", WSGIMiddleware(_narrowed()))
    return guarded(with_login(app, secret(home)))


def _narrowed() -> Flask:
    """Return MLflow's application of Flask with the routes that are served."""
    app = Flask("mlflow.server", static_folder=None)
    for rule in whole.url_map.iter_rules():
        if _SERVED.fullmatch(rule.rule) and not rule.rule.endswith(_STARTS_SOMETHING):
            methods = (rule.methods or set()) - {"HEAD", "OPTIONS"}
            app.add_url_rule(rule.rule, rule.endpoint, whole.view_functions[rule.endpoint], methods=methods)
    return app
