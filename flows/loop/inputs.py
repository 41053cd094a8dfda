"""What a run starts from: a recipe with its files pinned, its name, and its policy and problems as artifacts.

Nothing of Prefect here.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from gradus.data.lake.store import Ref, Store
from gradus.flows.loop.training import Inputs
from gradus.flows.recipe.ahead import overlapping
from gradus.flows.recipe.config import Recipe, lasting, stage_config
from gradus.tasks.artifacts.policies import refuse_training
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.identity.pins import pinned
from gradus.tasks.runtime.calls import Stages

_WITH_COMPONENTS = ("curate", "hint", "score", "update")


def as_run(recipe: Recipe) -> Recipe:
    """Return the recipe as it is run: with the digests of all files that its components come from, as they are now."""
    suites = tuple(
        suite.model_copy(update={"score": pinned(suite.score, renew=True)}) if suite.score else suite
        for suite in recipe.evaluate.suites
    )
    evaluate = recipe.evaluate.model_copy(update={"suites": suites})
    stages = {name: pinned(getattr(recipe, name), renew=True) for name in _WITH_COMPONENTS}
    return overlapping(recipe.model_copy(update={**stages, "evaluate": evaluate}))


def run_name(recipe: Recipe) -> str:
    """Return the recipe's name and eight digits of its digest: the same settings are the same run."""
    text = json.dumps(lasting(recipe), sort_keys=True)
    return f"{recipe.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def start_of(session: Stages, recipe: Recipe) -> Inputs:
    """Return the policy and the problems that training starts from, as artifacts."""
    policy = resolve_artifact(session.store, recipe.policy, "checkpoints")
    refuse_training(session.store, policy, recipe.update.lora)
    teacher = resolve_artifact(session.store, recipe.teacher, "checkpoints") if recipe.teacher else None
    ingest = stage_config(recipe, "ingest", 0, recipe.ingest)
    plan, whole = recipe.evaluate, ingest.model_copy(update={"limit": 0})  # a limit cuts the training set alone
    return Inputs(
        policy=policy,
        teacher=teacher,
        problems=problems_ref(session, recipe.problems, ingest),
        suites={s.name: problems_ref(session, s.problems, whole, plan.purpose(s)) for s in plan.suites},
    )


def problems_ref(session: Stages, text: str, config: IngestConfig | None = None, purpose: str = "train") -> Ref:
    """Return problems by artifact or bundled name, or those of a file through `ingest` with all its checks."""
    path = Path(text)
    if not path.is_file():
        return resolve_artifact(session.store, text, "problems")
    settings = (config or IngestConfig()).model_copy(update={"source": text})
    return session.stage("ingest", settings, {}, purpose=purpose).ref


def problems_of(store: Store, rollouts: Sequence[Ref]) -> list[Ref]:
    """Return the problems that our own rollouts were made of, by their manifests; empty for anybody else's."""
    named = [text for ref in rollouts for text in store.manifest(ref).parents.get("problems", [])]
    return [ref for ref in map(Ref.parse, dict.fromkeys(named)) if store.find(ref) is not None]
