"""Named points at which a kill test makes a process die, as a power cut would.

GRADUS_FAULT="rollout:after_shard#2" gradus demo     # SIGKILL at the second passing of that point
"""

import os
import signal
from collections import Counter

_passed: Counter[str] = Counter()


def fault_point(name: str) -> None:
    """Kill this process if the environment asks for it here; otherwise only count the passing."""
    _passed[name] += 1
    wanted = os.environ.get("GRADUS_FAULT")
    if wanted and wanted == f"{name}#{_passed[name]}":
        os.kill(os.getpid(), signal.SIGKILL)
