"""Command that starts torchrun for this host's ranks of a job."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

from gradus.tasks.config.learning import LaunchConfig
from gradus.tasks.host.isolation import child_environment

_AGENT = "gradus.tasks.stages.update.launch.agent"
Role = Literal["host", "guest"]
"""Role of this host: the ranks of several hosts meet here, or elsewhere."""


def start_agent(job: Path, launch: LaunchConfig, role: Role) -> "subprocess.Popen[bytes]":
    """Start torchrun for the job in a file; it ends with this process."""
    there = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    threads = {"OMP_NUM_THREADS": str(max(1, there // launch.processes))}  # those of this process, shared
    command = [sys.executable, "-P", "-m", _AGENT, str(job), str(os.getpid()), role]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=child_environment(threads))
