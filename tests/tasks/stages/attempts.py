"""An attempt of a stage in a process of its own, where it can be killed and its files limited."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.conftest import TESTS_PATH

CODE = """
import json, sys
from gradus.tasks.runtime.calls import execute
from gradus.tasks.host.processes import Warm
def beat(frac, text=""): pass
{more}
execute(json.loads(sys.argv[1]), Warm(), beat)
"""


def attempted(job: dict[str, Any], more: str = "", fault: str = "") -> "subprocess.CompletedProcess[str]":
    """Return how an attempt ended, after code that may define another `beat`, with a fault."""
    command = [sys.executable, "-c", CODE.format(more=more), json.dumps(job)]
    environment = {**os.environ, "GRADUS_FAULT": fault, "PYTHONPATH": TESTS_PATH, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=360, check=False)
