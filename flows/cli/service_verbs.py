"""The verbs about the place: ui, serve, doctor, setup, sync, join."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gradus.flows.cli.options import AsJson, KnownRun
from gradus.flows.console.output import answer, aside, line, table
from gradus.tasks.config.settings import Home, check_environment
from gradus.tasks.preflight.checks import check_name, check_webhook

Port = Annotated[int, typer.Option(min=1, max=65535, help="port on 127.0.0.1")]


def ui(prefect_port: Port = 4200, mlflow_port: Port = 5000) -> None:
    """Start the Prefect and MLflow servers on loopback and say where they are.

    Where `gradus serve` or another `gradus ui` of this home has started Prefect's, it is that one.
    """
    from gradus.tasks.servers.home_servers import start_servers

    home = Home.from_environment().root
    with start_servers(home, prefect_port, mlflow_port) as servers:
        _say_addresses(home, servers.prefect_url, servers.mlflow_url)
        line("Ctrl-C stops what this command started.")
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
        stop.wait()


def _say_addresses(home: Path, prefect_url: str, mlflow_url: str, *, ours: bool = True) -> None:
    """Print where the pages are, and how to log in if Prefect's server is `ours`; a database of MLflow's has none."""
    from gradus.tasks.host.home_folder import secret, secret_path
    from gradus.tasks.servers.home_servers import mlflow_login
    from gradus.tasks.tracking.names import address

    login = mlflow_login(home, mlflow_url)
    line(f"Prefect  {prefect_url}")
    if urlsplit(mlflow_url).scheme in ("http", "https"):
        line(f"MLflow   {address(mlflow_url, login)}")
    if not ours:
        return
    user = login.get("MLFLOW_TRACKING_USERNAME")  # none if the server is not ours
    both = f"Both ask once for a password, MLflow also for a user, `{user}`;"
    where = f"{both if user else 'Prefect asks once for a password;'} the password is in {secret_path(home)}"
    line(f"{where}: {secret(home)}" if sys.stdout.isatty() else where)  # a log or a pipe must not keep it


Notify = Annotated[
    str, typer.Option(envvar="GRADUS_NOTIFY_URL", help="webhook that is called for every training that fails")
]


def serve(notify: Notify = "") -> None:
    """Serve every flow as a deployment until stopped, beside `gradus ui` or a server of its own."""
    from gradus.flows.environment import prefect_api
    from gradus.tasks.host.home_folder import secret, secret_path
    from gradus.tasks.tracking.client import tracking_uri

    if notify:
        check_webhook(notify)
    check_environment()
    home = Home.from_environment()
    with prefect_api(home, schedules=True) as ready:
        from prefect.settings import PREFECT_UI_URL

        from gradus.flows.serve import serve_all

        ready()
        ours = secret_path(home.root).exists() and os.environ.get("PREFECT_API_AUTH_STRING") == secret(home.root)
        _say_addresses(home.root, PREFECT_UI_URL.value(), tracking_uri(home.root), ours=ours)
        serve_all(notify)


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can do, and what to do about each no."""
    from gradus.tasks.inspect.doctor import checks
    from gradus.tasks.servers.home_servers import mlflow_login
    from gradus.tasks.tracking.client import tracking_uri

    home = Home.from_environment().root
    found = checks(home, mlflow_login(home, tracking_uri(home)))

    def render(_: object) -> None:
        rows = [(each["name"], "yes" if each["ok"] else "no", each["detail"], each["cure"]) for each in found]
        table("", ("can", "", "detail", "what to do"), rows)

    answer({"checks": found}, as_json, render)


def setup() -> None:
    """Create or upgrade the MLflow database, once."""
    from gradus.tasks.tracking.sending import ensure_database  # the tracker is slow to import

    line(f"MLflow database: {ensure_database(Home.from_environment().root)}")


def sync(run: KnownRun) -> None:
    """Send to MLflow what a run could not send while the tracker was down."""
    from gradus.tasks.inspect.report.at_end import write_at_end
    from gradus.tasks.runs.history import run_folder
    from gradus.tasks.runs.run_settings import read_settings
    from gradus.tasks.tracking.facts import REPORT_PAGE

    home = Home.from_environment()
    folder = run_folder(home.runs, run)
    unreported = read_settings(folder)["verb"] == "train" and not (folder / REPORT_PAGE).exists()
    if unreported and (failure := write_at_end(home.root, folder)):
        aside(failure)
    from gradus.tasks.servers.home_servers import mlflow_login
    from gradus.tasks.tracking.client import tracking_uri
    from gradus.tasks.tracking.reporter import drain  # the tracker is slow to import

    os.environ |= mlflow_login(home.root, tracking_uri(home.root))

    line(f"{drain(folder, wait_s=60.0)} events sent")


def join(
    run: Annotated[str, typer.Argument(help="the name of a run whose updates ask for several hosts (--run)")],
    wait_s: Annotated[float, typer.Option(min=0, help="how long to wait for the run to begin, seconds")] = 600.0,
) -> None:
    """Take part in the updates of a run that was started on another host, until it ends.

    The hosts share the folder GRADUS_HOME; the recipe says `update.launch.hosts` and `rendezvous`.
    """
    from gradus.tasks.stages.update.launch.ranks import joined

    check_name(run, "--run")
    line(f"{joined(Home.from_environment().runs / run, aside, wait_s)} updates joined")
