"""What a browser sees of a training in MLflow: rows and charts at the printed address, and no picture of a policy's."""

import http.server
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from gradus.tasks.servers.processes import _start_mlflow, free_port
from gradus.tasks.tracking.client import tracking_uri
from gradus.tasks.tracking.view import address

Run = Any
NewRun = Callable[[str], Run]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
    pytest.mark.filterwarnings("ignore:.*noload.*"),
    pytest.mark.filterwarnings("ignore:.*Any type hint.*"),
]


@pytest.fixture
def listener() -> Iterator[tuple[str, list[str]]]:
    """The address of a server that notes each path it is asked for, and those paths."""
    asked: list[str] = []

    class Noting(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Noting) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def seen(url: str, profile: Path) -> str:
    """The text of a page after its scripts have run, in a browser that has never been used."""
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=2400,1600"]
    command += [f"--user-data-dir={profile}", "--virtual-time-budget=20000", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    shutil.rmtree(profile, ignore_errors=True)
    page = re.sub(r"<(script|style).*?</\1>", "", done.stdout, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_a_browser_sees_trainings_charts_and_notes_and_loads_no_picture_of_a_policy(
    new_run: NewRun, tmp_path: Path, listener: tuple[str, list[str]]
) -> None:
    place, asked = listener
    hostile = f"![p]({place}/markdown) <img src={place}/html> #### heading-of-the-policy"
    run = new_run("browsed")
    run.start(params={"recipe": {"name": "demo", "seed": 1, "rounds": 2}})
    sample = {"problem_id": "p1", "reward": 0.0, "outcome": "error", "completion": hostile, "error": hostile}
    metrics = {"reward/mean": 0.5, "reward/std": 0.25}
    summary = {"first_failed": [f"r1: {hostile}"], "tokens_generated": 123}
    for round_ in (1, 2):
        run.stage("score", round_, {"metrics": metrics, "samples": [sample], "summary": summary})
    run.stage("score", 3, {"metrics": metrics}, status="failed", error=f"1 of 1 rows could not be judged: {hostile}")
    run.journal.run_finished(status="failed", error=f"1 of 1 rows could not be judged: {hostile}")
    run.drain()
    client = mlflow.MlflowClient(tracking_uri(run.home))
    ids = dict(run.ask("select name, run_uuid from runs where run_uuid in mine"))
    with _start_mlflow(run.home, tracking_uri(run.home), free_port(0)) as server:
        server.wait_until_healthy(300)
        opened = address(server.url)
        table = seen(opened, tmp_path / "1")
        assert "browsed" in table
        assert "9 total/tokens_sampled" in table
        assert " 246 " in table
        assert "score-1" not in table
        runs, _, query = opened.partition("?")
        assert "2 reward" in seen(f"{runs}/{ids['browsed']}/model-metrics?{query}", tmp_path / "2")
        note = seen(f"{runs}/{ids['score-3']}?{query}", tmp_path / "3")
        assert "Failed after 1.5 s: 1 of 1 rows could not be judged" in note
        experiment = runs.removesuffix("/runs")
        (trace,) = [row[0] for row in run.ask(TRACES)][:1]
        text = seen(f"{experiment}/traces?selectedEvaluationId={trace}&{query}", tmp_path / "4")
        assert "Inputs / Outputs" in text  # the trace itself, not its row in the table
        assert "#### heading-of-the-policy" in text
        seen(f"{runs}/{ids['score-1']}/artifacts/summary.md?{query}", tmp_path / "5")
        assert asked == []
        # A note with a picture does load it: nothing else keeps the browser from it.
        client.set_tag(ids["score-1"], "mlflow.note.content", f"![p]({place}/control)")
        seen(f"{runs}/{ids['score-1']}?{query}", tmp_path / "6")
        assert "/control" in asked


TRACES = "select request_id from trace_request_metadata where key = 'mlflow.sourceRun' and value in mine order by 1"
