"""Pictures of a finished run in both web interfaces, made by a headless browser.

    python docs/screenshots.py RUN            # a run of this GRADUS_HOME, as `gradus runs` lists it

Needs Chromium and playwright (`apt-get install chromium`, `pip install playwright`). Starts both servers on loopback,
writes PNG files beside this script and ends the servers.
"""

import base64
import shutil
import sys
from pathlib import Path

import mlflow
from playwright.sync_api import Browser, sync_playwright

from gradus.tasks.config.settings import Home
from gradus.tasks.runs.journal import read_events
from gradus.tasks.servers.processes import start_servers
from gradus.tasks.servers.secret import secret
from gradus.tasks.tracking.view import QUERY, experiment_address

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SETTLED_MS = 8_000
"""After how long a page is taken to be drawn."""


def photograph(browser: Browser, url: str, path: Path, password: str = "") -> None:
    """Open a page, logged in to Prefect if a password is given, and keep what it shows."""
    with browser.new_context(viewport={"width": 1600, "height": 1000}) as context:
        context.add_init_script("localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')")
        if password:  # where Prefect's own login page keeps it
            login = base64.b64encode(password.encode()).decode()
            context.add_init_script(f"localStorage.setItem('prefect-password', '{login}')")
        page = context.new_page()
        page.goto(url)
        page.wait_for_timeout(SETTLED_MS)
        page.screenshot(path=path)


def pages(run: str, prefect_url: str, mlflow_url: str, home: Home) -> dict[str, str]:
    """Name of each picture and its address."""
    launch = next(e for e in read_events(home.runs / run) if e["event"] == "run_started")["prefect_flow_run_id"]
    mlflow.set_tracking_uri(mlflow_url)
    client = mlflow.MlflowClient()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`prefect.flow_run_id` = '{launch}'", max_results=1000)
    parent = next(r for r in found if "gradus.stage" not in r.data.tags)
    update = max((r for r in found if r.data.tags.get("gradus.stage") == "update"), key=lambda r: r.info.start_time)
    of_run = f"{mlflow_url}/#/experiments/{parent.info.experiment_id}/runs"
    return {
        "prefect-run": f"{prefect_url}/runs/flow-run/{launch}",
        "mlflow-runs": experiment_address(mlflow_url, parent.info.experiment_id),
        "mlflow-metrics": f"{of_run}/{parent.info.run_id}/model-metrics?{QUERY}",
        "mlflow-stage": f"{of_run}/{update.info.run_id}?{QUERY}",
        "mlflow-artifacts": f"{of_run}/{update.info.run_id}/artifacts?{QUERY}",
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/screenshots.py RUN")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no Chromium here: apt-get install chromium")
    home = Home.from_environment()
    with start_servers(home.root) as servers, sync_playwright() as player:
        opened = player.chromium.launch(executable_path=browser)
        for name, url in pages(sys.argv[1], servers.prefect_url, servers.mlflow_url, home).items():
            password = secret(home.root) if url.startswith(servers.prefect_url) else ""
            photograph(opened, url, HERE / f"{name}.png", password)
            print(HERE / f"{name}.png")


if __name__ == "__main__":
    main()
