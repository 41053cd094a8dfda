"""The page in a real browser: its figures are there, it asks nobody for anything, nothing that a policy wrote runs."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.report.writing import write_report
from tests.tasks.made_run import RUN, MadeRun

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


@contextlib.contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """A server on loopback and the paths that it was asked for."""
    asked: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def opened(page: Path, profile: Path) -> tuple[str, str]:
    """The document after it was loaded, and what the browser logged."""
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    more = [f"--user-data-dir={profile}", "--virtual-time-budget=2000", page.as_uri()]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def test_the_page_shows_the_figures_and_neither_runs_nor_asks_for_anything(tmp_path: Path) -> None:
    with listening() as (address, asked):
        hostile = (
            f"![]({address}/markdown) <img src='{address}/img' onerror=\"fetch('{address}/error')\">"
            f"<script>document.title = 'owned'; fetch('{address}/script')</script>"
            f"<style>@import url('{address}/style'); body {{ background: url('{address}/background') }}</style>"
        )
        MadeRun(Home(tmp_path), {(at, "train", "a", 0): hostile for at in (1, 2)}).whole()
        (page,) = write_report(Home(tmp_path), RUN, tmp_path / "page.html", pytest.fail)
        document, log = opened(page, tmp_path / "profile")
        assert asked == []
        page.write_text(page.read_text() + f"<img src='{address}/told'>")  # what the policy of the page forbids
        _, refused = opened(page, tmp_path / "profile")
        assert asked == []
    assert "<title>made-1</title>" in document
    assert "0.25 [0.125, 0.375]" in document
    assert "&lt;script&gt;document.title = 'owned'" in document
    # Nothing of the page itself breaks its own policy: neither the styles of the drawings nor the pictures in the maps.
    assert "Content Security Policy" not in log
    assert "Content Security Policy" in refused
