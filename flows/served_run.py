"""The process of a run that `gradus serve` starts: Prefect's engine, in the environment that a command prepares.

    python -P -m gradus.flows.served_run      # Prefect's variables name the run

Prefect's own `python -m prefect.engine` would take settings from files of the folder that it starts in.
"""

import os
import runpy
import sys

from gradus.flows.environment import prepare
from gradus.tasks.config.settings import Home
from gradus.tasks.servers.home_servers import join

COMMAND = (sys.executable, "-P", "-m", "gradus.flows.served_run")

if __name__ == "__main__":
    home = Home.from_environment()
    prepare(home)
    url = os.environ.get("PREFECT_API_URL")
    # A server of ours stays as long as this process, whatever becomes of `gradus serve`.
    connection = join(home.root, url) if url else None
    runpy.run_module("prefect.engine", run_name="__main__")
