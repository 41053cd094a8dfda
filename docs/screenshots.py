"""Pictures of a finished training: Prefect, MLflow, its report and the browser in the terminal.

    python docs/screenshots.py RUN            # a run of this GRADUS_HOME, as `gradus runs` lists it

Needs Chromium and playwright (`apt-get install chromium`, `pip install playwright`). Starts both servers on loopback,
writes PNG files beside this script and ends the servers. Exits with 1 if a page still shows that it is loading.
"""

import asyncio
import base64
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import mlflow
from playwright.sync_api import Browser, Page, sync_playwright
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from textual.app import App

from gradus.flows.console.browser.program import Browser as RunBrowser
from gradus.flows.console.output import aside
from gradus.flows.serve import deployments
from gradus.tasks.config.settings import Home
from gradus.tasks.host.home_folder import USER, secret
from gradus.tasks.inspect.sql_views import open_run
from gradus.tasks.runs.journal import read_events
from gradus.tasks.servers.home_servers import mlflow_login, start_servers
from gradus.tasks.tracking.facts import REPORT_PAGE
from gradus.tasks.tracking.names import QUERY, experiment_address

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SETTLED_MS = 8_000
"""After how long a page is taken to be drawn."""
LOADING = "[class*=spinner]:visible, [class*=skeleton]:visible, [aria-busy=true]:visible, [role=progressbar]:visible"
"""What pages show instead of what they wait for."""
LOADING_MS = 60_000


@dataclass(frozen=True)
class Picture:
    """A screenshot: its file, its page and what is done there first."""

    name: str
    url: str
    password: str = ""
    """Of Prefect, whose own login page keeps it, or of MLflow, for which the browser asks."""
    scheme: Literal["light", "dark"] = "light"
    click: str = ""
    """A text to click on first."""
    at: str = ""
    """A selector that is scrolled to."""
    size: tuple[int, int] = (1600, 1000)
    """Of the browser's page, pixels."""


def photograph(browser: Browser, picture: Picture) -> bool:
    """Open a page, keep what it shows; return whether it still was loading."""
    width, height = picture.size
    with browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=picture.scheme,
        http_credentials={"username": USER, "password": picture.password},
    ) as context:
        context.add_init_script("localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true')")
        if picture.password:
            login = base64.b64encode(picture.password.encode()).decode()
            context.add_init_script(f"localStorage.setItem('prefect-password', '{login}')")
        page = context.new_page()
        page.goto(picture.url)
        page.wait_for_timeout(SETTLED_MS)
        if picture.click:
            page.get_by_text(picture.click, exact=True).first.click()
            page.wait_for_timeout(SETTLED_MS)
        if picture.at:
            page.locator(picture.at).first.evaluate("shown => shown.scrollIntoView()")
        loads = _loads(page)
        # The button of MLflow's assistant lies over the page.
        page.screenshot(path=HERE / f"{picture.name}.png", style="[data-assistant-ui] { display: none }")
        return loads


def _loads(page: Page) -> bool:
    """Whether a page shows that it is loading after LOADING_MS."""
    waited_ms = 0
    while page.locator(LOADING).count():
        if waited_ms >= LOADING_MS:
            return True
        page.wait_for_timeout(1_000)
        waited_ms += 1_000
    return False


def pictures(run: str, prefect_url: str, mlflow_url: str, home: Home, form: str) -> list[Picture]:
    """Every picture of a browser."""
    launch = next(e for e in read_events(home.runs / run) if e["event"] == "run_started")["prefect_flow_run_id"]
    os.environ |= mlflow_login(home.root, mlflow_url)
    mlflow.set_tracking_uri(mlflow_url)
    client = mlflow.MlflowClient()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    found = client.search_runs(experiments, f"tags.`prefect.flow_run_id` = '{launch}'", max_results=1000)
    parent = next(r for r in found if "gradus.stage" not in r.data.tags)
    update = max((r for r in found if r.data.tags.get("gradus.stage") == "update"), key=lambda r: r.info.start_time)
    of_run = f"{mlflow_url}/#/experiments/{parent.info.experiment_id}/runs"
    key, report = secret(home.root), (home.runs / run / REPORT_PAGE).as_uri()
    return [
        Picture("prefect-run", f"{prefect_url}/runs/flow-run/{launch}", key),
        Picture("prefect-form", f"{prefect_url}/deployments/deployment/{form}/run", key),
        Picture("mlflow-runs", experiment_address(mlflow_url, parent.info.experiment_id), key),
        Picture("mlflow-metrics", f"{of_run}/{parent.info.run_id}/model-metrics?{QUERY}", key),
        Picture("mlflow-stage", f"{of_run}/{update.info.run_id}?{QUERY}", key),
        Picture("mlflow-artifacts", f"{of_run}/{update.info.run_id}/artifacts?{QUERY}", key),
        Picture("report", report),
        Picture("report-dark", report, scheme="dark"),
        Picture("report-group", report, at="#groups"),
    ]


def deployed(prefect_url: str, home: Home) -> str:
    """Send the deployment `train` to the server and return its id; nobody serves it."""
    train = next(each for each in deployments() if each.name == "train")
    known = {PREFECT_API_URL: f"{prefect_url}/api", PREFECT_API_AUTH_STRING: secret(home.root)}
    with temporary_settings(known), get_client(sync_client=True) as client:
        train.apply()
        return str(client.read_deployment_by_name(train.full_name).id)


def browsed(home: Home, run: str, folder: Path) -> list[Picture]:
    """Return what the browser in the terminal shows: rounds, problems of one, a group; drawn in a folder."""
    names = {"browse": "", "browse-problems": "enter", "browse-group": "enter"}

    async def shown(app: App[None]) -> None:
        async with app.run_test(size=(110, 32)) as pilot:
            await pilot.pause(2.0)
            for name, key in names.items():
                if key:
                    await pilot.press(key)
                    await pilot.pause(2.0)
                (folder / f"{name}.svg").write_text(app.export_screenshot(), encoding="utf-8")

    with open_run(home, run, aside) as rows:
        asyncio.run(shown(RunBrowser(rows)))
    return [Picture(name, (folder / f"{name}.svg").as_uri(), size=(1400, 880)) for name in names]


def main() -> None:
    """Take every picture."""
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/screenshots.py RUN")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no Chromium here: apt-get install chromium")
    home, run = Home.from_environment(), sys.argv[1]
    with TemporaryDirectory() as folder, start_servers(home.root) as servers:
        taken = browsed(home, run, Path(folder))
        taken += pictures(run, servers.prefect_url, servers.mlflow_url, home, deployed(servers.prefect_url, home))
        with sync_playwright() as player:
            opened = player.chromium.launch(executable_path=browser)
            loading = [picture.name for picture in taken if photograph(opened, picture)]
    if loading:
        sys.exit(f"still loading: {', '.join(loading)}")


if __name__ == "__main__":
    main()
