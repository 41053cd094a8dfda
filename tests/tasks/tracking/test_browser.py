"""What a browser sees of a training in MLflow: rows and charts at the printed address, and no picture of a policy's."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from gradus.tasks.host.home_folder import USER, secret
from gradus.tasks.servers.home_servers import mlflow_login, start_mlflow
from gradus.tasks.tracking.client import tracking_uri
from gradus.tasks.tracking.names import address
from tests.browser import CHROMIUM, Browser
from tests.patience import quiet_port

Run = Any
NewRun = Callable[[str], Run]
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
LEFT_OUT = ("/ajax-api/3.0/mlflow/assistant/", "/ajax-api/2.0/mlflow/gateway-proxy", "/ajax-api/2.0/mlflow/users/")
"""What the pages ask for and our server has not; MLflow's own has no users either."""


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
    with contextlib.closing(start_mlflow(run.home, quiet_port())) as server:
        server.wait()
        opened = address(server.address, mlflow_login(run.home, server.address))
        runs, _, query = opened.partition("?")
        experiment = runs.removesuffix("/runs")
        with Browser(tmp_path, login=(USER, secret(run.home))) as browser:
            table = browser.open(opened, until="browsed")
            assert "9 total/tokens_sampled" in table
            assert "246" in table
            assert "score-1" not in table
            browser.open(f"{runs}/{ids['browsed']}/model-metrics?{query}", until="2 reward")
            note = browser.open(f"{runs}/{ids['score-3']}?{query}", until="Failed after 1.5 s")
            assert "1 of 1 rows could not be judged" in note
            (trace,) = [row[0] for row in run.ask(TRACES)][:1]
            text = browser.open(
                f"{experiment}/traces?selectedEvaluationId={trace}&{query}",
                until="Inputs / Outputs",  # the trace itself, not its row in the table
            )
            assert "#### heading-of-the-policy" in text
            browser.open(f"{runs}/{ids['score-1']}/artifacts/samples.json?{query}", until="heading-of-the-policy")
            assert asked == []
            assert browser.prompts == 1
            refused = {
                url.partition(server.address)[2].partition("?")[0] for status, url in browser.answered if status >= 400
            }
            assert {path for path in refused if not path.startswith(LEFT_OUT)} == set()
            assert len(browser.answered) > 50
            # A note with a picture does load it: nothing else keeps the browser from it.
            client.set_tag(ids["score-1"], "mlflow.note.content", f"![p]({place}/control)")
            browser.open("about:blank", until="")
            browser.open(f"{runs}/{ids['score-1']}?{query}", until="score-1")
            assert "/control" in asked
            # The password that the browser keeps does not help a page of another port of this machine.
            browser.open(place, until="")
            seen = len(browser.answered)
            browser.evaluate(ATTACK % {"server": server.address})
            assert [status for status, url in browser.answered[seen:] if url.startswith(server.address)] == [403] * 4


ATTACK = """
const send = (path, more) => fetch("%(server)s" + path, {mode: "no-cors", credentials: "include", ...more});
const load = (kind) => new Promise(done => {
    const shown = document.createElement(kind);
    shown.onload = shown.onerror = done;
    shown.src = "%(server)s/version";
    document.body.append(shown);
});
const asked = [send("/version"), send("/graphql", {method: "POST", body: "{}"}), load("img"), load("iframe")];
Promise.all(asked.map(each => each.catch(String)))
"""
TRACES = "select request_id from trace_request_metadata where key = 'mlflow.sourceRun' and value in mine order by 1"
