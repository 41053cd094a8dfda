"""The account of a resumed run: prompts that the command before had sampled, and those that this one samples."""

from pathlib import Path

from gradus.data.curation.by_use import of_role, of_use
from gradus.data.curation.uses import LEARN, POLICY
from gradus.data.lake.store import Store
from gradus.tasks.runs.history import read_open
from gradus.tasks.runs.records import Account, total
from gradus.tasks.runtime.calls import Call, Outcome
from gradus.tasks.stages.rollout.resumed import KEYS, account_of

_PLANNED = ("group_id", "plan_id", "n", "role", "use")


class Resuming:
    """Counts the prompts of a run's rollouts as its stages end, if the command before did not finish."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._open = interrupted(folder)
        self._counts = self._open is not None
        self._accounts: list[Account] = []

    def after(self, outcome: Outcome, call: Call) -> Account | None:
        """Return what is to be said after a stage: the sum at the first that was computed, then of each that continued.

        Raise StageError if a rollout of a plan is lost.
        """
        account = outcome.summary.get("resumed") if not outcome.reused else None
        if outcome.stage == "rollout" and account is None and self._counts:
            account = self._counted(outcome, call)
        if account is not None:
            self._accounts.append(account)
        if outcome.reused or not (self._counts or account):
            return None
        self._counts, found, self._accounts = False, self._accounts, []
        return total(found)

    def _counted(self, outcome: Outcome, call: Call) -> Account | None:
        """The account of rollouts that are reused, or that an attempt began without finishing a shard."""
        if not outcome.reused and str(outcome.ref) not in (self._open or ()):
            return None
        plan = self._store.read(call.inputs["plan"][0], _PLANNED)
        plan = of_use(of_role(plan, str(call.facts.get("role", POLICY))), str(call.facts.get("use", LEARN)))
        there = self._store.read(outcome.ref, KEYS)
        return account_of(plan, there if outcome.reused else there.slice(0, 0), there)


def interrupted(folder: Path) -> frozenset[str] | None:
    """Return the rollouts that a run has begun and not finished; None if no command before is to be resumed."""
    story = read_open(folder, lambda _: None)
    if story.before == "finished":
        return None
    open_rows = (row for row in story.rows.values() if row["status"] not in ("finished", "reused"))
    return frozenset(row["output"] for row in open_rows if row["stage"] == "rollout")
