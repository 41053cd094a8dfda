"""`lab`: objectives of methods on the same stored rounds, as a Prefect flow; then a comparison of the better half."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from gradus.data.lake.manifest import json_digest
from gradus.data.lake.store import Store
from gradus.flows import comparison
from gradus.flows.console.output import aside
from gradus.flows.laboratory.asked import lab_asked
from gradus.flows.laboratory.cells import cells_of
from gradus.flows.laboratory.ready import LabReady, lab_ready
from gradus.flows.loop.comparing.budget import Budget
from gradus.flows.recipe.lasting import lasting
from gradus.flows.session import RunSpec, label_flow_run, open_session
from gradus.flows.verbs import form_of, gradus_flow
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.comparing.figures import Comparison
from gradus.tasks.inspect.laboratory import Laboratory, keep_laboratory, laboratory

_HALVINGS = 2
"""Comparisons at half of the budget and at a quarter before the one at all of it."""


@gradus_flow("lab")
@form_of(lab_asked)
def lab(**given: Any) -> Laboratory:
    """Compute the gradient of each method on stored rounds of runs, without a token sampled.

    Of each: its angle to the others, signal to noise, clipped and masked tokens by the age of the rows, and by how much
    a step changes the log-probs of held-out right and wrong rollouts. It is a run of its own, `lab-DIGEST`, with its
    tables and its picture, in MLflow too. With `then` the better half is trained and compared.
    """
    asked = lab_asked(**given)
    home = Home.from_environment()
    ready = lab_ready(home, asked)
    label_flow_run(f"lab {', '.join(run.folder.name for run in ready.runs)}", "lab")
    body = _body(ready)
    with open_session(RunSpec(name=_name_of(body), verb="lab", seed=ready.runs[0].recipe.seed, body=body)) as session:
        cells, failed = cells_of(session, ready.runs, ready.methods, asked.rounds, ready.ages)
        found = laboratory(Store(home.lake), cells, [*ready.failed, *failed], ready.remarks)
        keep_laboratory(found, session.journal.folder)
    if ready.budget is not None:
        found["comparisons"] = _compared(found, ready, ready.budget)
    return found


def _body(ready: LabReady) -> dict[str, object]:
    """The settings of the run: the same methods on the same rounds are the same run."""
    methods = {
        method.name: {run: json_digest(lasting(recipe))[:8] for run, recipe in method.recipes.items()}
        for method in ready.methods
    }
    return {
        "runs": [run.folder.name for run in ready.runs],
        "rounds": ready.asked.rounds,
        "ages": [*ready.ages],
        "methods": methods,
    }


def _name_of(body: Mapping[str, object]) -> str:
    return f"lab-{json_digest(body)[:8]}"


def _compared(found: Laboratory, ready: LabReady, budget: Budget) -> list[Comparison]:
    """Train the better half by gain, and halve again by pass@1 at each doubling of the budget (successive halving).

    Jamieson and Talwalkar 2016 (arXiv 1502.07943). The run's own recipe is always among them; a training continues
    where that of the half budget ended.
    """
    first, *others = sorted(found["methods"], key=lambda each: (each["method"] != "none", each["rank"]))
    left = [each["method"] for each in others if not each["same_as"]]
    results = list[Comparison]()
    if not left:
        aside("every method has the gradient of the run's own: there is nothing to compare")
    for halving in range(_HALVINGS, -1, -1):
        left = left[: ceil(len(left) / 2)]
        if not left:
            break
        amount = max(1, budget.amount // 2**halving)
        aside(f"comparing {', '.join([first['method'], *left])} with {amount:,} {budget.unit} each")
        results.append(_compare([first["method"], *left], ready, f"{budget.unit}={amount}"))
        left = _by_result(results[-1], left)
    return results


def _compare(methods: Sequence[str], ready: LabReady, budget: str) -> Comparison:
    names = [run.folder.name for run in ready.runs]
    texts = {each.name: each.given for each in ready.methods}
    given = {
        "method": [texts[name] for name in methods],
        "seeds": ready.asked.seeds,
        "budget": budget,
        "set": ready.asked.set,
    }
    return comparison.compare(recipes=names, **given)


def _by_result(compared: Comparison, methods: Sequence[str]) -> list[str]:
    """Return methods in the order of pass@1 after training; those that failed are left out."""
    after = {each["method"].partition("+")[2] or "none": each["after"]["value"] for each in compared["methods"]}
    return sorted((name for name in methods if name in after), key=lambda name: -after[name])
