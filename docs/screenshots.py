"""Pictures of a finished run in both web interfaces, made by a headless browser.

    python docs/screenshots.py RUN            # a run of this GRADUS_HOME, as `gradus runs` lists it

Needs Chromium (`apt-get install chromium`). Starts both servers on loopback, writes PNG files beside this script and
ends the servers.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mlflow

from tasks.journal import read_events
from tasks.servers import start_servers
from tasks.settings import Home

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SETTLED_MS = 25_000
"""Time of the page's own clock after which it is taken to be drawn."""


def photograph(browser: str, url: str, path: Path, size: str = "1600,1000") -> None:
    """Open a page and keep what it shows."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                f"--window-size={size}",
                f"--virtual-time-budget={SETTLED_MS}",
                f"--screenshot={path}",
                url,
            ],
            check=True,
            capture_output=True,
            timeout=180,
        )


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
        "mlflow-runs": f"{mlflow_url}/#/experiments/{parent.info.experiment_id}/runs",
        "mlflow-metrics": f"{of_run}/{parent.info.run_id}/model-metrics",
        "mlflow-stage": f"{of_run}/{update.info.run_id}",
        "mlflow-artifacts": f"{of_run}/{update.info.run_id}/artifacts",
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/screenshots.py RUN")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("no Chromium here: apt-get install chromium")
    home = Home.from_environment()
    with start_servers(home.root) as servers:
        for name, url in pages(sys.argv[1], servers.prefect_url, servers.mlflow_url, home).items():
            photograph(browser, url, HERE / f"{name}.png")
            print(HERE / f"{name}.png")


if __name__ == "__main__":
    main()
