"""A laboratory that can begin: its runs and methods, checked before anything starts. Does not import Prefect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gradus.data.errors import GradusError, UsageError
from gradus.data.lake.store import Store
from gradus.flows.laboratory.asked import LabAsked
from gradus.flows.laboratory.stored import StoredRun
from gradus.flows.loop.comparing.budget import Budget, parse_budget
from gradus.flows.loop.reruns import read_recipe
from gradus.flows.loop.variants import called
from gradus.flows.parameters import named
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.overlays import Overlay, find_overlays, overlay_files
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.laboratory import Failure
from gradus.tasks.runs.history import run_folder

NONE = "none"
_OF_OBJECTIVE = {"update", "phase"}


@dataclass(frozen=True)
class Method:
    """A method laid over each run, by name."""

    name: str
    recipes: Mapping[str, Recipe]
    """By the name of the run."""
    given: str
    """Its name or file, as it was given."""


@dataclass(frozen=True)
class LabReady:
    """A laboratory that can begin."""

    asked: LabAsked
    runs: Sequence[StoredRun]
    methods: Sequence[Method]
    """The first is the run itself."""
    ages: Sequence[int]
    budget: Budget | None
    failed: Sequence[Failure]
    """Methods that cannot be laid over the runs."""
    remarks: Sequence[str]


def lab_ready(home: Home, asked: LabAsked) -> LabReady:
    """Return runs and methods; UsageError for a run without a stored policy, or if no method fits."""
    store, ages = Store(home.lake), _ages(asked.ages)
    found = [StoredRun(store, run_folder(home.runs, name)) for name in dict.fromkeys(map(named, asked.runs))]
    remarks = [text for run in found for text in _without_later(run, asked.rounds, ages)]
    of_objective = (name for name in overlay_files() if _parts(find_overlays([name])[0]) & _OF_OBJECTIVE)
    names = dict.fromkeys([*asked.method, *(of_objective if asked.every else ())])
    laid, failed = [_laid(home, found, NONE, asked)], list[Failure]()
    for name in names:
        try:
            method = _laid(home, found, name, asked)
            remarks += _beside(name)
        except GradusError as error:
            failed.append({"method": name, "reason": str(error)})
            continue
        if method.name not in {each.name for each in laid}:
            laid.append(method)
    if len(laid) == 1 and failed:
        raise UsageError(f"{failed[0]['method']}: {failed[0]['reason']}")
    return LabReady(asked, found, laid, ages, parse_budget(asked.budget) if asked.budget else None, failed, remarks)


def _laid(home: Home, runs: Sequence[StoredRun], name: str, asked: LabAsked) -> Method:
    overlay, names = [] if name == NONE else [name], [run.folder.name for run in runs]
    recipes = {run: read_recipe(home.runs, run, list(asked.set), overlay)[0] for run in names}
    return Method(called(name, ()), recipes, name)


def _ages(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 0:
        raise UsageError(f"--ages {text!r}: these are no ages", hint="write whole numbers from 0 on: --ages 0,1,4")
    return found


def _without_later(run: StoredRun, num_rounds: int, ages: Sequence[int]) -> list[str]:
    """Remark on rounds behind which a policy of some age is not there; UsageError without any round."""
    rounds = run.rounds(num_rounds)
    found = {age: [str(each.index) for each in rounds if len(each.policies) <= age] for age in ages}
    return [
        f"{run.folder.name}: no policy {age} updates after round {', '.join(missing)} is there, so these rounds have "
        f"no rows of that age; a recipe keeps policies with keep.last, and `gradus restore` computes pruned ones again"
        for age, missing in found.items()
        if missing
    ]


def _beside(name: str) -> list[str]:
    """Remark on the parts of a method that sample other rows, which stored rounds cannot have."""
    parts = set[str]().union(*map(_parts, find_overlays([name]))) - _OF_OBJECTIVE - {"measures"}
    return [f"{name}: its {', '.join(sorted(parts))} are not asked: the rows are those of the run"] if parts else []


def _parts(overlay: Overlay) -> set[str]:
    settings: Mapping[str, object] = overlay.facts["settings"]
    return {key.partition(".")[0] for key in settings}
