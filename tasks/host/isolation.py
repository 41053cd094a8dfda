"""Isolation of this process and its children from the surroundings that they are started in, and their end with it.

    isolate(os.environ)                                # once, in the command: what it starts inherits it
    Popen(command, env=child_environment({"A": "b"}))  # every Python process of ours
    die_with_parent(os.getppid())                      # first of all in a child; the parent that it expects

Loopback is never asked through a proxy; other addresses are. The current folder is on no child's module path, so that a
`json.py` or `sitecustomize.py` there is not taken for Python's. PYTHONWARNINGS, meant for a user's own code, would as
`error` end an import of a third-party library.
Left out: judges of rewards, whose environment is scrubbed further (gradus.models.judging.process).
"""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path

from gradus.data.errors import UsageError
from gradus.tasks.config.settings import code_root

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WARNINGS = "PYTHONWARNINGS"
_MODULE_PATH = "PYTHONPATH"
_SAFE_PATH = "PYTHONSAFEPATH"
_PR_SET_PDEATHSIG = 1
_NO_PROXY = ("no_proxy", "NO_PROXY")


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
