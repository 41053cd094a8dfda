"""Every route of every port that `gradus ui` and `gradus serve` open, asked by those who have no business there.

    python benchmarks/open_doors.py            # as root, since it asks as another account too

Asked by another account (uid 65534), and with the password by a page of a foreign origin, of origin `null` and of
another port of localhost. Prints the ports that listen, how often each status was answered, and each route that
was answered with another status than 400, 401, 403 or 404.
"""

import base64
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
from common import ROOT, environment

sys.path.insert(0, str(ROOT))

from tests.strangers import NOBODY, Route, answers, mlflow_routes, prefect_routes

REFUSED = {400, 401, 403, 404}
PAGES = {"a foreign page": "http://evil.example", "a page of origin null": "null", "another port": "http://localhost:1"}
LIMIT_S = 600.0


def started(home: Path, verb: str, said: str, *options: str) -> "subprocess.Popen[bytes]":
    """Start the program and wait until it has said something."""
    log = home / f"{verb}.log"
    with log.open("wb") as file:
        command = [sys.executable, "-P", "-m", "gradus", verb, *options]
        process = subprocess.Popen(command, env=environment(home), cwd=home, stdout=file, stderr=file)
    until = time.monotonic() + LIMIT_S
    while said not in log.read_text():
        if process.poll() is not None or time.monotonic() > until:
            sys.exit(log.read_text())
        time.sleep(0.2)
    return process


def listening(*processes: "subprocess.Popen[bytes]") -> dict[int, set[str]]:
    """The ports that processes and their children listen at, with the address and the program of each."""
    found: dict[int, set[str]] = {}
    for process in processes:
        for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
            for connection in each.net_connections():
                if connection.status == psutil.CONN_LISTEN or connection.type != 1:
                    program = " ".join(word for word in each.cmdline() if "gradus" in word or word in ("ui", "serve"))
                    found.setdefault(connection.laddr.port, set()).add(f"{connection.laddr.ip} {program}")
    return found


def asked(name: str, url: str, routes: list[Route], login: str) -> None:
    """Ask one server everything and print what it answered."""
    clients = {"another account": ({}, NOBODY)}
    clients |= {who: ({"Origin": origin, "Authorization": login}, None) for who, origin in PAGES.items()}
    print(f"\n{name}, {len(routes)} routes")
    for who, (headers, uid) in clients.items():
        found = answers(url, routes, headers, uid)
        counts = ", ".join(f"{count} x {status}" for status, count in sorted(Counter(found).items()))
        print(f"  {who:<22} {counts}")
        for (method, path), status in zip(routes, found, strict=True):
            if status not in REFUSED:
                print(f"    {status} {method} {path}")


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        ui = started(home, "ui", "password", "--prefect-port", "4440", "--mlflow-port", "5440")
        serve = started(home, "serve", "train")
        try:
            said = (home / "ui.log").read_text().splitlines()
            urls = {name: url.partition("/#/")[0] for name, url in (line.split() for line in said[:2])}
            for port, programs in sorted(listening(ui, serve).items()):
                print(port, "; ".join(sorted(programs)))
            key = (home / "prefect-password").read_text().strip()
            for name, routes, login in (
                ("Prefect", prefect_routes(), key),
                ("MLflow", mlflow_routes(), f"gradus:{key}"),
            ):
                asked(name, urls[name], routes, f"Basic {base64.b64encode(login.encode()).decode()}")
        finally:
            for process in (serve, ui):
                process.send_signal(signal.SIGINT)
                process.wait(120)


if __name__ == "__main__":
    main()
