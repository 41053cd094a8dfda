"""A run's turn on the GPUs of this machine: one limit of Prefect's for commands, served runs and work pools.

    turn = GpuTurn("tiny-1", session.say)
    turn.take(settings)     # before a stage that computes on a GPU; waits while another run has the turn
    turn.end()              # with the run: its stages, one after the other or at once, share one turn

The limit is made if it is missing, with one slot; a larger number set in Prefect's pages stays. A run that is killed
keeps its slot until its lease ends. A run continues if its lease cannot be renewed.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from gradus.components.settings import Config
from gradus.tasks.config.learning import UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.settings import gpu_turns

LIMIT = "gradus-gpu"
LEASE_S = 300.0
"""Seconds that a killed run keeps its slot."""


class GpuTurn:
    """The turn of one run."""

    def __init__(self, run: str, say: Callable[[str], None]) -> None:
        self._run = run
        self._say = say
        self._held = ExitStack()
        self._taken = False
        self._lock = Lock()

    @property
    def taken(self) -> bool:
        """Return whether the run has the turn."""
        return self._taken

    def take(self, settings: Config) -> None:
        """Wait for the turn if a stage of these settings computes on a GPU and the run does not have it yet."""
        if not computes_on_gpu(settings):
            return
        with self._lock:
            if not self._taken:
                self._wait()
            self._taken = True

    def end(self) -> None:
        """Let the next run have the turn."""
        self._held.close()
        self._taken = False

    def _wait(self) -> None:
        if _all_taken():
            self._say(f"{self._run} waits for a GPU, which other runs use (Prefect's limit {LIMIT})")
        held = concurrency(LIMIT, lease_duration=LEASE_S, strict=True, raise_on_lease_renewal_failure=False)
        self._held.enter_context(held)


def computes_on_gpu(settings: Config) -> bool:
    """Return whether a stage of these settings computes on a GPU of this machine, as far as known without torch."""
    match settings:
        case RolloutConfig(engine="openai"):
            return False
        case RolloutConfig(device=device) | UpdateConfig(device=device) | WarmstartConfig(device=device):
            wanted = gpu_turns()
            return device != "cpu" and (wanted == "on" or (wanted == "auto" and any(Path("/dev").glob("nvidia[0-9]*"))))
        case _:
            return False


def _all_taken() -> bool:
    """Return whether every slot of the limit is taken; it is made if it is missing."""
    with get_client(sync_client=True) as client:
        try:
            limit = client.read_global_concurrency_limit_by_name(LIMIT)
        except ObjectNotFound:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=LIMIT, limit=1))
            return False
    return limit.active_slots >= limit.limit
