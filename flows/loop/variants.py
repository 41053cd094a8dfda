"""The methods of a comparison: recipes, and the values of settings that are given several of. Does not import Prefect.

methods_of(home.runs, ["demo"], ["escalate=[2]", "escalate=[]", "update.lr=1e-4"], rounds=3)
    # two methods: demo escalate=[2] and demo escalate=[]
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path

from gradus.data.errors import UsageError
from gradus.data.lake.manifest import sha256_file
from gradus.flows.loop.reruns import read_recipe
from gradus.flows.recipe.assignments import split_assignment
from gradus.flows.recipe.config import Recipe, lasting
from gradus.flows.recipe.suites import Suite


@dataclass(frozen=True)
class Variant:
    """One method: its name in the comparison, and its recipe."""

    name: str
    recipe: Recipe

    def with_seed(self, seed: int) -> Recipe:
        """Return its recipe with another seed."""
        return self.recipe.model_copy(update={"seed": seed})


def methods_of(
    runs: Path,
    names: Sequence[str],
    assignments: Sequence[str],
    rounds: int | None = None,
    overlays: Sequence[str] = (),
) -> list[Variant]:
    """Return each recipe with each overlay and each combination of set values; UsageError if two are the same."""
    chosen = [
        Variant(called(name, overlay, varied), read_recipe(runs, name, texts, overlay, rounds=rounds)[0])
        for name in names
        for overlay in ([] if each == "none" else [each] for each in overlays or ["none"])
        for texts, varied in _combinations(assignments)
    ]
    refuse_unpaired(chosen)
    return chosen


def refuse_unpaired(methods: Sequence[Variant]) -> None:
    """Raise UsageError for methods that cannot be compared: the same, or evaluated in other ways."""
    for one, other in combinations(methods, 2):
        # Methods over one recipe give its copies names of their own; two recipes may differ in nothing but their names.
        ours = {"name": ""} if one.name.partition("+")[0] == other.name.partition("+")[0] else {}
        if one.name == other.name or {**lasting(one.recipe), **ours} == {**lasting(other.recipe), **ours}:
            raise UsageError(f"{one.name} and {other.name} are the same method", hint="leave one of them out")
    first = methods[0]
    for other in methods[1:]:
        if differing := otherwise_evaluated(first.recipe.evaluate.main, other.recipe.evaluate.main):
            raise UsageError(
                f"{first.name} and {other.name} are evaluated in different ways: evaluate.{differing}",
                hint="compare methods on the same problems, sampled in the same way; "
                "`--set evaluate.KEY=...` sets a key for all",
            )


def refuse_single(methods: int, seeds: int) -> None:
    """Raise UsageError for one method with one seed."""
    if methods * seeds < 2:
        raise UsageError(
            "one training is no comparison",
            hint="name another recipe or several methods (--method none --method dr_grpo), give a setting twice "
            "(--set update.lr=1e-4 --set update.lr=3e-4), or several seeds of one recipe (--seeds 5)",
        )


def other_judges(methods: Sequence[Variant]) -> list[str]:
    """Remark on methods whose evaluations are judged by different rewards."""
    judges = {json.dumps((m.recipe.evaluate.main.score or m.recipe.score).model_dump(mode="json")) for m in methods}
    remark = "the methods are judged by different rewards in evaluation, too; set evaluate.score to judge all alike"
    return [remark] if len(judges) > 1 else []


def _combinations(assignments: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield `key=value` texts, one for each key, and those of them whose key has several values."""
    values: dict[str, list[str]] = {}
    for text in assignments:
        values.setdefault(split_assignment(text)[0], []).append(text.strip())
    for texts in product(*values.values()):
        yield list(texts), [text for text, several in zip(texts, values.values(), strict=True) if len(several) > 1]


def called(name: str, overlay: Sequence[str], varied: Sequence[str] = ()) -> str:
    """Return the name of a recipe, or of a method, with methods and settings."""
    parts = [part for text in (name, *overlay) for part in ([text] if Path(text).is_file() else text.split("+"))]
    stems = [Path(part).stem if part.endswith(".toml") else part for part in parts]
    return " ".join(["+".join(stems), *varied])


def otherwise_evaluated(one: Suite, other: Suite) -> str:
    """Return the first key by which two suites draw different samples; empty if none does."""
    if not same_problems(one.problems, other.problems):
        return "problems"
    return next((key for key in ("sample", "seed", "prompt", "stop") if getattr(one, key) != getattr(other, key)), "")


def same_problems(one: str, other: str) -> bool:
    """Return whether two names of problems are the same, or of files that hold the same."""
    files = [Path(text) for text in (one, other)]
    return one == other or (all(f.is_file() for f in files) and len({sha256_file(f) for f in files}) == 1)
