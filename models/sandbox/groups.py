"""Control groups of the kernel: a hard bound on memory and processes of a sandbox, its cells together, or of a judge.

The watchdog of a cell looks at intervals, and at the pages of its processes. A group counts whatever is allocated, the
kernel's memory for pipes, sockets, page tables and files too. A machine without one has watchdog and rlimits alone.
"""

import contextlib
import math
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

_PREFIX = "gradus-sandbox-"
_CONTROLLERS = {"memory", "pids"}
_SHELL = "/bin/sh"
_ENTER = 'until [ "$1" = -- ]; do { echo $$ > "$1/cgroup.procs"; } 2>/dev/null; shift; done; shift; exec "$@"'
"""Enters each group before --, where it can, and becomes the command behind."""
_REMOVED_WITHIN_S = 2.0
OWN_BYTES = 512 * 1024**2
"""The sandbox's own processes, with what they hold of input and output, and the kernel's memory for all."""
_OWN_PROCESSES = 32
"""The first process, and two for each of six cells (in use, ready, ending), rounded up."""


def bounds(limits: Mapping[str, int]) -> tuple[int, int]:
    """Return the bytes and the processes of a group, beyond all that the limits of its programs allow at one time.

    These are a program (built or run), its tests, and the files of both; twice, since those before may still be ending.
    """
    memory_bytes = 2 * (limits["build"] + limits["memory"] + 4 * limits["disk"])  # /tmp and /dev/shm of both
    return memory_bytes + OWN_BYTES, 4 * (limits["processes"] + limits["own_processes"]) + _OWN_PROCESSES


class Group:
    """A group in each of the hierarchies that is needed; without any it bounds nothing."""

    def __init__(self, folders: Sequence[Path] = ()) -> None:
        self.folders = folders

    def entered_by(self, command: Sequence[str]) -> list[str]:
        """Return a command that enters the group first, so that nothing it forks is outside."""
        into = [_SHELL, "-c", _ENTER, "sh", *map(str, self.folders), "--"] if self.folders else []
        return [*into, *command]

    def holds(self, pid: int) -> bool:
        """Return whether a process has entered."""
        with contextlib.suppress(OSError, IndexError):
            return Path(f"/proc/{pid}/cgroup").read_text().count(f"/{self.folders[0].name}\n") >= len(self.folders)
        return False

    def remove(self) -> None:
        """Remove the group once its processes are gone; one that stays is removed when a later process makes one."""
        until = time.monotonic() + _REMOVED_WITHIN_S
        while (left := [each for each in self.folders if not _removed(each)]) and time.monotonic() < until:
            time.sleep(0.005)
        self.folders = left


def made(memory_bytes: int, num_processes: int) -> Group:
    """Return a new group, without folders if the machine allows none; those whose owner was killed are removed."""
    group = Group()
    try:
        # A process has this number in our namespace alone.
        ours = f"{_PREFIX}{Path('/proc/self/ns/pid').stat().st_ino}-"
        name = f"{ours}{os.getpid()}-{secrets.token_hex(4)}"
        for place in places(*_own_texts()) if os.access(_SHELL, os.X_OK) else ():
            for left in place.glob(f"{ours}*-*"):
                if not Path("/proc", left.name.removeprefix(ours).partition("-")[0]).exists():
                    _removed(left)
            (place / name).mkdir()
            group.folders = [*group.folders, place / name]
            _bound(place / name, memory_bytes, num_processes)
    except (OSError, ValueError):
        group.remove()
    return group


def own_cpu_quota() -> float:
    """Return the CPUs of time a second that the groups of this process allow it; infinity without a limit."""
    try:
        return cpu_quota(*_own_texts())
    except (OSError, ValueError):
        return math.inf


def cpu_quota(own: str, mounts: str, root: Path = Path("/")) -> float:
    """Return the least quota of our groups and of those around them, in CPUs, by the texts that `places` reads."""
    quotas = [math.inf]
    for _, mount, folder in _own_groups(own, mounts, root):
        for group in takewhile(lambda each, top=mount: each.is_relative_to(top), (folder, *folder.parents)):
            for names in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):  # version 2, version 1
                with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
                    quota, period = " ".join((group / name).read_text() for name in names).split()
                    quotas.append(int(quota) / int(period))
    return min(each for each in quotas if each > 0)  # -1: no limit


def _own_texts() -> tuple[str, str]:
    return Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()


def places(own: str, mounts: str, root: Path = Path("/")) -> list[Path]:
    """Return the folders for groups of this process, by the texts of /proc/self/cgroup and /proc/self/mountinfo.

    Of version 2 it is the folder around our own group, since one with processes hands no controllers down; of version 1
    they are our own groups of memory and of processes. Nothing is found unless both can be bounded.
    """
    first: dict[str, Path] = {}
    for names, mount, folder in _own_groups(own, mounts, root):
        place = folder if names or folder == mount else folder.parent
        if os.access(place, os.W_OK):
            first |= dict.fromkeys(names.split(","), place)
            handed_down = place / "cgroup.subtree_control"
            if not names and handed_down.is_file() and set(handed_down.read_text().split()) >= _CONTROLLERS:
                return [place]
    return sorted({first[name] for name in _CONTROLLERS}) if first.keys() >= _CONTROLLERS else []


def _own_groups(own: str, mounts: str, root: Path) -> Iterator[tuple[str, Path, Path]]:
    """Yield controllers (none for version 2), the mount point of their hierarchy, and the folder of our group."""
    for line in mounts.splitlines():
        mounted, _, described = line.partition(" - ")
        shown, point = mounted.split()[3:5]
        kind, _, options = described.split(" ", 2)
        for names, path in (each.split(":", 2)[1:] for each in own.splitlines()):
            same = set(names.split(",")) <= set(options.split(",")) if names else kind == "cgroup2"
            if same and kind.startswith("cgroup") and Path(path).is_relative_to(shown):
                yield names, (mount := root / point.lstrip("/")), mount / Path(path).relative_to(shown)


def _bound(folder: Path, memory_bytes: int, num_processes: int) -> None:
    limits = {"memory.max": memory_bytes, "memory.limit_in_bytes": memory_bytes, "pids.max": num_processes}
    swap = {"memory.swap.max": 0, "memory.memsw.limit_in_bytes": memory_bytes}
    for path, value in ((folder / name, value) for name, value in (limits | swap).items()):
        with contextlib.suppress(OSError) if path.name in swap else contextlib.nullcontext():
            if path.exists():
                path.write_text(str(value))


def _removed(folder: Path) -> bool:
    """Kill what is left in a group whose owner is gone or done with it, and remove it; return whether it is gone.

    A bwrap that is killed while its child waits for its user's map leaves that child waiting for ever.
    """
    with contextlib.suppress(OSError):
        for pid in map(int, (folder / "cgroup.procs").read_text(encoding="ascii").split()):
            if pid > 0:  # 0 is a process outside of our namespace
                os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()
