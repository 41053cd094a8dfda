"""Ray for the workers of a stage: one of our own on this machine, or an existing cluster.

Ours listens on loopback alone, asks for a token, sends no usage report and keeps its files in a folder that goes with
it. Its daemons are killed by the kernel when the thread that started them ends, its workers end when they miss their
daemon, and what is left is ended by the guardian of gradus.tasks.runtime.worker. Left out: `ray://` addresses (no
streams).
"""

import math
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType

from gradus.data.errors import StageError
from gradus.data.runlock import RunLock, left_by_the_dead
from gradus.models.errors import first_line
from gradus.tasks.config.rollout import RayConfig

LOOPBACK = "127.0.0.1"
_PREFIX = "gradus-ray-"
_OBJECT_BYTES = 128 << 20
"""Memory for what passes between stage and workers: requests and finished rollouts, a few hundred at a time."""
_CONNECT_S = 10.0
_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    # Ray remembers its token as long as the process lives, so a process has one.
    "RAY_AUTH_TOKEN": os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32),
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray replaces 127.0.0.1 by an address that others can reach, unless it takes this for a desktop system.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}


@contextmanager
def cluster(config: RayConfig) -> Generator[ModuleType]:
    """Connect to the cluster at `address`, or start a local one for the duration of the context.

    Raise StageError if the package is missing, the cluster cannot be reached, or this machine lacks the accelerators.
    """
    with _joined(config.address) if config.address else _own(config) as ray:
        yield ray


@contextmanager
def _own(config: RayConfig) -> Generator[ModuleType]:
    os.environ.update(_SETTINGS)
    ray = _imported()
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with RunLock(folder):
            try:
                _start(ray, folder, config)
                yield ray
            finally:
                ray.shutdown()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(ray: ModuleType, folder: Path, config: RayConfig) -> None:
    try:
        _init(ray, folder, config)
    except Exception as error:  # noqa: BLE001 - Ray raises a plain Exception after the 30 s that it waits for itself
        if "timed out" not in str(error):
            raise _not_started(error) from None
        ray.shutdown()
        try:
            _init(ray, folder, config)  # on a busy machine the second start finds the files in memory
        except Exception as second:  # noqa: BLE001
            raise _not_started(second) from None
    listens_on = {node["NodeManagerAddress"] for node in ray.nodes()}
    if listens_on != {LOOPBACK}:
        raise StageError(f"Ray listens on {', '.join(sorted(listens_on))}, not on {LOOPBACK} alone; it was ended")
    there, wanted = ray.cluster_resources().get("GPU", 0), config.workers * config.gpus
    if wanted > there:
        raise StageError(
            f"{config.workers} workers with ray.gpus = {config.gpus:g} want {wanted:g} GPUs; Ray sees {there:g} here",
            hint="lower ray.workers or ray.gpus",
        )


def _init(ray: ModuleType, folder: Path, config: RayConfig) -> None:
    ray.init(
        address="local",
        num_cpus=math.ceil(config.workers * config.cpus),
        include_dashboard=False,
        object_store_memory=_OBJECT_BYTES,
        configure_logging=False,
        _node_ip_address=LOOPBACK,
        _temp_dir=str(folder),
        _system_config={"worker_niceness": 0},
    )


def _not_started(error: Exception) -> StageError:
    return StageError(f"Ray did not start: {first_line(error).rstrip('.')}", hint="fix that, or leave out ray.workers")


@contextmanager
def _joined(address: str) -> Generator[ModuleType]:
    ray = _imported()
    host, _, port = address.rpartition(":")
    hint = "start it (`ray start --head`), or correct ray.address"
    try:
        if port.isdigit():
            # Ray itself waits for minutes and then ends the process.
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        ray.init(address=address, configure_logging=False)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise StageError(f"no Ray cluster at {address}: {first_line(error).rstrip('.')}", hint=hint) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _imported() -> ModuleType:
    try:
        import ray  # noqa: PLC0415 - an extra, and read by it: the environment of this moment
    except ModuleNotFoundError:
        raise StageError("the package ray is not installed", hint="pip install 'gradus[ray]'") from None
    return ray


def _sweep() -> None:
    """Remove the folders of processes that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # of another account
            if left_by_the_dead(folder):
                shutil.rmtree(folder, ignore_errors=True)
