"""The account of a run that continues after a kill or a failure, up to the first stage that it computes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.data.curation.by_use import of_role, of_use
from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.lake.store import Ref, Store
from gradus.data.records import Json
from gradus.tasks.runs.journal import read_events
from gradus.tasks.runs.records import Account, total
from gradus.tasks.runtime.calls import Outcome
from gradus.tasks.stages.rollout.account import KEYS, account_of

_PLANNED = ("group_id", "plan_id", "n", "role", "use")


class Resuming:
    """Counts the prompts of a run's rollouts as its stages end, if the command before did not finish."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._open = interrupted(folder)
        self._counts = self._open is not None
        self._accounts: list[Account] = []

    def after(self, outcome: Outcome, inputs: Mapping[str, Sequence[Ref]], facts: Mapping[str, Json]) -> Account | None:
        """Return what is to be said after a stage: the sum at the first that was computed, then of each that continued.

        Raise StageError if a rollout of a plan is lost.
        """
        account = outcome.summary.get("resumed") if not outcome.reused else None
        if outcome.stage == "rollout" and account is None and self._counts:
            account = self._counted(outcome, inputs, facts)
        if account is not None:
            self._accounts.append(account)
        if outcome.reused or not (self._counts or account):
            return None
        self._counts, found, self._accounts = False, self._accounts, []
        return total(found)

    def _counted(
        self, outcome: Outcome, inputs: Mapping[str, Sequence[Ref]], facts: Mapping[str, Json]
    ) -> Account | None:
        """The account of rollouts that are reused, or that an attempt began without finishing a shard."""
        if not outcome.reused and str(outcome.ref) not in (self._open or ()):
            return None
        plan = self._store.read(inputs["plan"][0], _PLANNED)
        plan = of_use(of_role(plan, str(facts.get("role", POLICY))), str(facts.get("use", LEARN)))
        there = self._store.read(outcome.ref, KEYS)
        return account_of(plan, there if outcome.reused else there.slice(0, 0), there)


def interrupted(folder: Path) -> frozenset[str] | None:
    """Return the rollouts that a run has begun and not finished; None if no command before is to be resumed."""
    status, begun, found = "finished", dict[str, str](), None
    for event in read_events(folder, lambda _: None):
        match event["event"]:
            case "run_started":
                found = None if status == "finished" else frozenset(begun.values())
                status = ""
            case "run_finished":
                status = event["status"]
            case "stage_started" if event["stage"] == "rollout":
                begun[event["attempt"]] = event["output"]
            case "stage_finished" if event["status"] == "finished":
                begun.pop(event["attempt"], None)
            case _:
                continue
    return found
