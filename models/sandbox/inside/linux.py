"""System calls that Python 3.11 has no functions for, by ctypes: namespaces, mounts, rights.

Linux 5.14 or newer: `mount_setattr`, and processes counted by user namespace.
"""

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_USER, NEW_PIDS, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
"""Flags of unshare(2)."""
NOSUID, NODEV, NOEXEC, BIND, REC, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
"""Flags of mount(2)."""
_ATTR_READ_ONLY, _ATTR_NOSUID, _ATTR_RECURSIVE = 1, 2, 0x8000
_DETACH = 2
_MOUNT_SETATTR = 442
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAP_VERSION, _NUM_CAPS = 0x20080522, 41
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _DROP_BOUND, _NO_NEW_PRIVILEGES = 1, 4, 24, 38
_SIGKILL = 9
_END_SOONER = 20
"""In thousandths of the memory: more than a process of the sandbox has, and little beside what fills a machine."""

INNER_ID = 1000
"""User and group of programs, within."""
_NOBODY = 65534
_libc = ctypes.CDLL(None, use_errno=True)


def machine() -> str:
    """Return the architecture; OSError for one whose system calls are not known here."""
    name = os.uname().machine
    if name not in _PIVOT_ROOT:
        raise OSError(0, f"the sandbox knows x86_64 and aarch64, and this machine is {name}")
    return name


def prctl(option: int, value: int = 0, pointer: object = 0) -> None:
    """Set an attribute of this process; OSError if it fails."""
    _checked(_libc.prctl(option, value, pointer, 0, 0), "prctl")


def die_with_parent() -> None:
    """Let the kernel kill this process if its parent ends."""
    prctl(_SET_DEATH_SIGNAL, _SIGKILL)


def hide_memory(*, hidden: bool = True) -> None:
    """Keep other processes of the same user from this one's memory and descriptors, or let them at it."""
    prctl(_SET_DUMPABLE, 0 if hidden else 1)


def end_sooner() -> None:
    """Let a kernel without memory end this process before those of the sandbox, which are about as large."""
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        path.write_text(str(min(int(path.read_text(encoding="ascii")) + _END_SOONER, 1000)), encoding="ascii")


def limit(name: str, soft: int, hard: int | None = None) -> None:
    """Set the resource limit RLIMIT_`name` of this process, `hard` as `soft` unless given; none is raised."""
    kind = getattr(resource, f"RLIMIT_{name}")
    _, ceiling = resource.getrlimit(kind)
    most = sys.maxsize if ceiling == resource.RLIM_INFINITY else ceiling
    resource.setrlimit(kind, (min(soft, most), min(soft if hard is None else hard, most)))


def unshare(flags: int) -> None:
    """Enter new namespaces; OSError if the machine does not allow them."""
    _checked(_libc.unshare(flags), "unshare")


def enter_user_namespace() -> None:
    """Become the owner of a new user namespace, in which root is nobody outside if this process is root."""
    user, group = os.geteuid(), os.getegid()
    if user != 0:
        unshare(NEW_USER)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{INNER_ID} {user} 1")
        _write("/proc/self/gid_map", f"{INNER_ID} {group} 1")
        return
    # Two ranges can only be written from outside: a child waits until this process has left.
    (left, leave), (mapped, done) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _map_of_parent(left, done)
    unshare(NEW_USER)
    os.write(leave, b".")
    ok = os.read(mapped, 1) == b"."
    os.waitpid(child, 0)
    for descriptor in (left, leave, mapped, done):
        os.close(descriptor)
    if not ok:
        raise OSError(0, f"the user namespace takes no map of user {_NOBODY}")
    os.setgroups([])


def _map_of_parent(left: int, done: int) -> None:
    try:
        os.read(left, 1)
        for name in ("uid_map", "gid_map"):
            _write(f"/proc/{os.getppid()}/{name}", f"0 0 1\n{INNER_ID} {_NOBODY} 1")
        os.write(done, b".")
    finally:
        os._exit(0)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount a file system, or show a part of one elsewhere; OSError if it fails."""
    words = [word.encode() for word in (source, target, kind)]
    _checked(_libc.mount(*words, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def read_only(target: str, *, below: bool = True) -> None:
    """Make a mount read-only, and all mounts below it."""
    # Attributes to set and to clear, propagation, namespace.
    attributes = (ctypes.c_uint64 * 4)(_ATTR_READ_ONLY | (_ATTR_NOSUID if below else 0))
    flags = _ATTR_RECURSIVE if below else 0
    arguments = (-100, target.encode(), flags, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)))
    _checked(_libc.syscall(_MOUNT_SETATTR, *arguments), f"mount_setattr {target}")


def detach(target: str) -> None:
    """Unmount a tree of mounts."""
    _checked(_libc.umount2(target.encode(), _DETACH), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root and mount the present one at `old`."""
    _checked(_libc.syscall(_PIVOT_ROOT[machine()], new.encode(), old.encode()), "pivot_root")
    os.chdir("/")


def drop_rights(limits: Mapping[str, int], *, keep_user: bool = False) -> None:
    """Set resource limits (name of the RLIMIT -> value), then drop all capabilities for good; root becomes nobody."""
    for name, wanted in limits.items():
        limit(name, wanted)
    for capability in range(_NUM_CAPS):
        with contextlib.suppress(OSError):  # those that this kernel does not have, or that are not held
            prctl(_DROP_BOUND, capability)
    if os.geteuid() == 0 and not keep_user:
        os.setresgid(INNER_ID, INNER_ID, INNER_ID)
        os.setresuid(INNER_ID, INNER_ID, INNER_ID)
    header, none = (ctypes.c_uint32 * 2)(_CAP_VERSION, 0), (ctypes.c_uint32 * 6)()
    _checked(_libc.syscall(_CAPSET[machine()], ctypes.byref(header), ctypes.byref(none)), "capset")
    prctl(_NO_NEW_PRIVILEGES, 1)


def bind_view(folders: Sequence[str], old: str, new: str) -> None:
    """Show files and folders of the tree `old` in the tree `new`, read-only; links that lead to others stay links."""
    for path in folders:
        source, target = Path(old + path), Path(new + path)
        if source.is_symlink():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source.readlink())
        elif source.exists() and not target.exists():
            bind(source, target)
            read_only(str(target))


def bind(source: Path, target: Path) -> None:
    """Show a file or a folder at another place, which is made."""
    folder = target if source.is_dir() else target.parent
    folder.mkdir(parents=True, exist_ok=True)
    if folder != target:
        target.touch()
    mount(str(source), str(target), "", BIND | REC)


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
