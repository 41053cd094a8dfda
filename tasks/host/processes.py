"""Processes of ours: isolated from their surroundings, with logs, errors as data, and points where a test kills them.

    isolate(os.environ)                                # once, in the command: what it starts inherits it
    Popen(command, env=child_environment({"A": "b"}))  # every Python process of ours
    die_with_parent(os.getppid())                      # first of all in a child; the parent that it expects
    parent.send(failed(error))                         # in a child: an error as plain data
    raise known_error(message) or ...                  # in the parent: what the child raised
    GRADUS_FAULT="rollout:after_shard#2" gradus demo   # SIGKILL at the second passing of that point
    ctx.warm.of(LoadedPolicies).by_key                 # in a worker: what it keeps from job to job, by class

Loopback is never asked through a proxy; other addresses are. The current folder is on no child's module path, so that a
`json.py` or `sitecustomize.py` there is not taken for Python's. PYTHONWARNINGS, meant for a user's own code, would as
`error` end an import of a third-party library. Several processes append to a log, which is set aside when it grows.
Left out: judges of rewards, whose environment is scrubbed further (gradus.models.judging.process).
"""

import ctypes
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Mapping, MutableMapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from gradus.data.errors import GradusError, UsageError, error_class, in_words
from gradus.tasks.config.redaction import hide
from gradus.tasks.config.settings import code_root, run_logs

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WARNINGS = "PYTHONWARNINGS"
_MODULE_PATH = "PYTHONPATH"
_SAFE_PATH = "PYTHONSAFEPATH"
_PR_SET_PDEATHSIG = 1
_NO_PROXY = ("no_proxy", "NO_PROXY")

MAX_LOG_BYTES = 4_000_000
"""A log that is longer when it is opened becomes NAME.1; the one that had this name is deleted."""
_TAIL_BYTES = 4096

_WANTED = os.environ.get("GRADUS_FAULT")  # read once: some points are passed for every row
"""The point at which a kill test makes this process die, as a power cut would."""
_passed: Counter[str] = Counter()
Record = TypeVar("Record")


class Warm:
    """Objects that stay loaded in a worker from job to job: one record a class, a dataclass of the stage that keeps it.

    Light: a worker has its record before it has imported a stage.
    """

    def __init__(self) -> None:
        self._records: dict[type[object], object] = {}

    def of(self, kind: type[Record]) -> Record:
        """Return the worker's only record of a class; the first call makes it, without arguments."""
        if kind not in self._records:
            self._records[kind] = kind()
        return cast("Record", self._records[kind])


def isolate(environment: MutableMapping[str, str]) -> None:
    """Change an environment so that processes started with it are isolated; other variables of the user stay."""
    environment.pop(WARNINGS, None)
    environment[_SAFE_PATH] = "1"
    if _MODULE_PATH in environment:
        environment[_MODULE_PATH] = module_path(environment[_MODULE_PATH])
    environment.update(past_proxies(environment))


def child_environment(*more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a Python child: this process's, then `more`, with our code first on the module path."""
    environment = dict(os.environ)
    paths = [environment.get(_MODULE_PATH, "")]
    for given in more:
        environment |= given
        paths.insert(0, given.get(_MODULE_PATH, ""))
    isolate(environment)
    return {**environment, _MODULE_PATH: module_path(str(code_root()), *paths)}


def module_path(*paths: str) -> str:
    """Join values of PYTHONPATH, without entries that mean the current folder, relative ones made absolute.

    >>> module_path("", "/a::.:/b", "/a")
    '/a:/b'
    """
    entries = (entry for path in paths for entry in path.split(os.pathsep))
    kept = (str(Path(entry).absolute()) for entry in entries if entry and os.path.normpath(entry) != os.curdir)
    return os.pathsep.join(dict.fromkeys(kept))


def past_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that keep loopback off proxies, in both spellings; some libraries read one, some the other."""
    found: dict[str, str] = {}
    for name, other in (_NO_PROXY, reversed(_NO_PROXY)):
        hosts = [host for host in re.split(r"[,\s]+", environment.get(name) or environment.get(other, "")) if host]
        if "*" in hosts:  # no proxy at all, which libraries understand only if it stands alone
            found[name] = "*"
        else:
            found[name] = ",".join([*hosts, *(host for host in LOOPBACK if host not in hosts)])
    return found


def refuse_unusable_proxies() -> None:
    """Raise UsageError for a SOCKS proxy that no library here can use: clients would fail even on loopback."""
    from urllib.request import getproxies  # noqa: PLC0415 - slow to import, and asked by commands alone

    for scheme in ("http", "https", "all"):
        proxy = getproxies().get(scheme, "")
        if proxy.startswith("socks") and find_spec("socksio") is None:
            raise UsageError(
                f"{scheme}_proxy names a SOCKS proxy, for which the package socksio is needed",
                hint="pip install socksio, or unset the variable for this command",
            )


def die_with_parent(expected: int) -> None:
    """Be killed when the parent dies; end at once if `expected` is not the parent any more.

    Linux only: elsewhere a child outlives its parent unless it is ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != expected:
            os.kill(os.getpid(), signal.SIGKILL)


def open_log(path: Path) -> IO[bytes]:
    """Open a log for appending; processes that have the old file open continue to write to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
    return open(path, "ab", opener=partial(os.open, mode=0o600))


def last_words(path: Path, since: int = 0) -> str:
    """Return the last line of a log after this byte; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(since, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def reward_log(name: str) -> Path | None:
    """Return the file for the output of a reward, in the logs of the run of this process; None outside a run."""
    logs = run_logs()
    return logs / log_name(name) if logs else None


def log_name(reward: str) -> str:
    """The name of the log of a reward.

    >>> log_name("math"), log_name("/home/me/mine.py:by_length")
    ('reward-math.log', 'reward-mine-by_length.log')
    """
    path, _, function = reward.rpartition(":")
    short = f"{Path(path).stem}-{function}" if path else reward
    return f"reward-{re.sub(r'[^A-Za-z0-9_.-]', '_', short)}.log"


def printed(name: str) -> str:
    """The end of a hint that names the log of a reward; empty if it printed nothing."""
    log = reward_log(name)
    return f"; what it printed is in {log}" if log and log.exists() and log.stat().st_size else ""


def failed(error: Exception) -> dict[str, str]:
    """Return the message of an error, its secrets hidden; `type` is empty unless it is one of gradus.data.errors."""
    plain, kind = in_words(error), type(error).__name__ if isinstance(error, GradusError) else ""
    return {"kind": "error", "type": kind, "message": hide(plain.message), "hint": plain.hint}


def known_error(message: Mapping[str, Any]) -> GradusError | None:
    """Return the error of a message as its own type; None if it is none of ours."""
    kind = error_class(message["type"])
    return kind(message["message"], hint=message["hint"]) if kind is not None else None


def fault_point(name: str) -> None:
    """Kill this process if its environment asked for it here."""
    if _WANTED is None:
        return
    _passed[name] += 1
    if f"{name}#{_passed[name]}" == _WANTED:
        os.kill(os.getpid(), signal.SIGKILL)
