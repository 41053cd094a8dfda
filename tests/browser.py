"""A headless Chromium that logs in as a person does, once, and notes what its pages ask for.

with Browser(tmp_path, login=("gradus", "secret")) as browser:
    text = browser.open("http://127.0.0.1:5000/", until="Experiments")
    browser.answered, browser.prompts
"""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_LIMIT_S = 300.0
_QUIET_S = 0.5
"""For how long a page that is drawn loads nothing."""


class Browser:
    """One window, spoken to by the DevTools protocol."""

    def __init__(self, folder: Path, login: tuple[str, str] = ("", "")) -> None:
        self.answered: list[tuple[int, str]] = []
        """Status and address of each answer."""
        self.prompts = 0
        """How often a user and a password were asked for."""
        self._profile = folder / "chromium"
        self._login = login
        self._count = 0
        self._loading: set[str] = set()

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=2400,1600"]
        command += [f"--user-data-dir={self._profile}", "--remote-debugging-port=0", "about:blank"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._socket = self._connected()
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Fetch.enable", handleAuthRequests=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(60)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _connected(self) -> ClientConnection:
        port, until = self._profile / "DevToolsActivePort", time.monotonic() + _LIMIT_S
        while not port.exists() or not port.read_text():
            assert self._process.poll() is None, "the browser does not start"
            assert time.monotonic() < until, "the browser does not start"
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list") as answer:
            (page,) = [each for each in json.load(answer) if each["type"] == "page"]
        return connect(page["webSocketDebuggerUrl"], max_size=None)

    def call(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        number = self._send(method, params)
        while True:
            said = json.loads(self._socket.recv(_LIMIT_S))
            if said.get("id") == number:
                assert "error" not in said, said["error"]
                return said["result"]
            self._note(said)

    def _send(self, method: str, params: Any) -> int:
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": params}))
        return self._count

    def _note(self, said: Any) -> None:
        match said.get("method"):
            case "Network.requestWillBeSent" if not said["params"]["request"]["url"].endswith(".worker.js"):
                self._loading.add(said["params"]["requestId"])  # of a worker's script the end is not said
            case "Network.responseReceived":
                response = said["params"]["response"]
                self.answered.append((response["status"], response["url"]))
            case "Network.loadingFinished" | "Network.loadingFailed":
                self._loading.discard(said["params"]["requestId"])
            case "Fetch.requestPaused":
                self._send("Fetch.continueRequest", {"requestId": said["params"]["requestId"]})
            case "Fetch.authRequired":
                self.prompts += 1
                user, password = self._login
                answer = {"response": "ProvideCredentials", "username": user, "password": password}
                given = {"requestId": said["params"]["requestId"], "authChallengeResponse": answer}
                self._send("Fetch.continueWithAuth", given)
            case _:
                pass

    def evaluate(self, script: str) -> Any:
        """Return the value of a script in the page, once its promise is kept."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        return found["result"].get("value")

    def open(self, url: str, *, until: str) -> str:
        """Open an address and return the text of the page once it shows a text and loads nothing more."""
        self._loading.clear()
        self.call("Page.navigate", url=url)
        text, deadline, busy = "", time.monotonic() + _LIMIT_S, time.monotonic()
        while time.monotonic() - busy < _QUIET_S:
            text = self.evaluate("document.body ? document.body.innerText : ''") or ""
            if until not in text or self._loading:
                busy = time.monotonic()
            assert busy < deadline, text
            time.sleep(0.05)
        return text

    def photograph(self, file: Path) -> None:
        """Keep a picture of the page."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
