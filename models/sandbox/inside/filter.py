"""A seccomp filter: calls that reach other processes, the kernel itself, or memory that no limit counts.

Answers EPERM (ENOSYS for clone3, after which libraries use clone), so that a program reads an error and is not killed.
"""

import ctypes
import struct

from gradus.models.sandbox.inside.linux import machine, prctl

_SET_SECCOMP, _FILTER_MODE = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_SET, _JUMP_GREATER, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020000
_UNIX = 1

_REFUSED: dict[str, tuple[int, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "syslog": (103, 116),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "memfd_create": (319, 279),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "personality": (135, 92),
    "modify_ldt": (154, None),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "memfd_secret": (447, 447),
}
"""Calls with their numbers on the architectures, in the order of `_ARCHES`."""
_SOCKET, _CLONE = {"x86_64": 41, "aarch64": 198}, {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def refuse_calls() -> None:
    """Install the filter for this process and all that it starts; it must have given up new privileges before."""
    code = filter_code(machine())
    held = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.addressof(held))
    prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program))


def filter_code(arch: str) -> bytes:
    """Return the filter for an architecture, as classic BPF."""
    error, allow = _step(_RETURN, _ERROR | _EPERM), _step(_RETURN, _ALLOW)
    steps = [_step(_LOAD, _ARCH), _step(_JUMP_EQUAL, _ARCHES[arch], 1, 0), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    if arch == "x86_64":
        steps += [_step(_JUMP_GREATER, _X32, 0, 1), error]
    steps += [_step(_JUMP_EQUAL, _CLONE3, 0, 1), _step(_RETURN, _ERROR | _ENOSYS)]
    place = list(_ARCHES).index(arch)
    for number in sorted(each for numbers in _REFUSED.values() if (each := numbers[place]) is not None):
        steps += [_step(_JUMP_EQUAL, number, 0, 1), error]
    # A socket of another family than AF_UNIX, and a clone into new namespaces, are known by their first argument.
    load = _step(_LOAD, _FIRST_ARGUMENT)
    steps += [_step(_JUMP_EQUAL, _SOCKET[arch], 0, 4), load, _step(_JUMP_EQUAL, _UNIX, 1, 0), error, allow]
    steps += [_step(_JUMP_EQUAL, _CLONE[arch], 0, 4), load, _step(_JUMP_SET, _NEW_NAMESPACES, 0, 1), error, allow]
    return b"".join([*steps, allow])


def _step(operation: int, value: int, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("<HBBI", operation, jump_true, jump_false, value)
