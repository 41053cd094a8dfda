"""Inputs of a run: a recipe with its files pinned, its name, and its policy and problems as artifacts.

Does not import Prefect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gradus.data.lake.manifest import json_digest
from gradus.data.lake.store import Ref, Store
from gradus.flows.loop.reruns import stored_recipe
from gradus.flows.loop.round.outcomes import Beginning, Stored
from gradus.flows.recipe.ahead import overlapping
from gradus.flows.recipe.checking import GIVEN
from gradus.flows.recipe.config import Recipe, changed_files, lasting, same_run
from gradus.flows.recipe.course.by_round import section, stage_config
from gradus.flows.recipe.course.phases import of_each_phase
from gradus.flows.recipe.heads import check_heads
from gradus.flows.recipe.samplings import Sampling, samplings
from gradus.models.templates import PromptConfig
from gradus.tasks.artifacts.beginning import (
    foreign_rows,
    refuse_foreign,
    refuse_odd_plan,
    refuse_other_policy,
    refuse_unsolved,
    refuse_unusable,
    start_ref,
    traces_ref,
)
from gradus.tasks.artifacts.policies import base_ref, refuse_long, refuse_training
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.curation import IngestConfig
from gradus.tasks.identity.pins import content_sha256, pinned, source_facts
from gradus.tasks.inspect.remarks import is_filtered, shared_problems
from gradus.tasks.preflight.abilities import positions
from gradus.tasks.runs.history import run_folders
from gradus.tasks.runs.run_settings import RUN, read_settings
from gradus.tasks.runtime.calls import Call, Stages


def as_run(recipe: Recipe) -> Recipe:
    """Return the recipe as it is run: with the digests of all files that its components come from, as they are now."""
    found = pinned(recipe, renew=True)
    assert isinstance(found, Recipe)
    stages = {name: pinned(section(recipe, name), renew=True).model_dump(mode="json") for name in recipe.stages}
    files = {text: content_sha256(Path(text)) for text in _named_files(recipe) if Path(text).is_file()}
    return overlapping(found.model_copy(update={"stages": stages, "files": files}))


def _named_files(recipe: Recipe) -> list[str]:
    starts = (tracker.start for tracker in recipe.trackers if tracker.start)
    begun = (text for texts in recipe.begin.named.values() for text in texts)
    given = dict.fromkeys(wave.traces for each in of_each_phase(recipe) for wave in each.all_waves if wave.traces)
    return [*recipe.all_problems, *(suite.problems for suite in recipe.evaluate.suites), *starts, *begun, *given]


def run_name(recipe: Recipe) -> str:
    """Return the recipe's name and eight digits of its digest: the same settings are the same run."""
    return f"{recipe.name}-{_digits(recipe)}"


def _digits(recipe: Recipe) -> str:
    return json_digest(lasting(recipe))[:8]


def name_of_rerun(runs: Path, run: str, recipe: Recipe) -> str:
    """Return the name of a run whose stages are computed again: another if a file has changed since, by `recipe`."""
    stored = stored_recipe(runs, run)
    if same_run(stored, recipe):
        return run
    return run_name(recipe) if run == run_name(stored) else f"{run}-{_digits(recipe)}"


def on_other_data(runs: Path, recipe: Recipe) -> str:
    """Return a sentence if a recipe is another run than before because its data has changed; empty otherwise."""
    name = run_name(recipe)
    if not recipe.files or (runs / name / RUN).is_file():
        return ""
    body = recipe.model_dump(mode="json")
    for folder in run_folders(runs):
        is_like = folder.name.startswith(f"{recipe.name}-")
        stored = read_settings(folder, lambda _: None).get("recipe") if is_like else None  # unknown of a damaged run
        if stored and (files := changed_files(stored, body)):
            return f"{', '.join(files)} changed since {folder.name} began: this is another run, {name}"
    return ""


def start_of(session: Stages, recipe: Recipe) -> Beginning:
    """Return the policy and the problems that training starts from, as artifacts."""
    policy = resolve_artifact(session.store, recipe.policy, "checkpoints")
    refuse_training(session.store, policy, recipe.update.lora)
    teacher = resolve_artifact(session.store, recipe.teacher, "checkpoints") if recipe.teacher else None
    named = {name: role.policy for name, role in recipe.roles.items() if role.policy}
    roles = {name: resolve_artifact(session.store, text, "checkpoints") for name, text in named.items()}
    models = {recipe.policy: policy, recipe.teacher: teacher, **{named[name]: ref for name, ref in roles.items()}}
    store = session.store
    check_heads(recipe, {text: store.path(base_ref(store, ref) or ref) for text, ref in models.items() if ref})
    for name, role in recipe.roles.items():
        if role.update is not None:
            refuse_training(session.store, roles.setdefault(name, policy), role.update.lora)
    ingest = stage_config(recipe, "ingest", 0, recipe.ingest)
    if ingest.max_prompt_tokens:
        ingest = ingest.model_copy(update={"prompt": recipe.rollout.prompt})
    plan, whole = recipe.evaluate, ingest.model_copy(update={"limit": 0})  # a limit cuts the training set alone
    named = list(dict.fromkeys(recipe.all_problems))
    ingested = {
        text: problems_ref(session, text, ingest, f"phase{place + 1}" if place else "train", policy)
        for place, text in enumerate(named)
    }
    problems = ingested[named[0]]
    suites = {s.name: problems_ref(session, s.problems, whole, plan.purpose(s), policy) for s in plan.suites}
    trained = list(ingested.values())
    for drawn in trained:
        _refuse_long(session, recipe, policy, drawn, suites)
    filtered = is_filtered(each.model_dump() for each in recipe.curate.filters)
    pairs = ((drawn, ref, name) for drawn in trained for name, ref in suites.items())
    found = [text for pair in pairs for text in shared_problems(session.store, *pair, filtered=filtered)]
    traces, left_out = _texts(session.store, recipe, trained)
    trackers = {each.short: start_ref(session.store, each) for each in recipe.trackers if each.start}
    begun = ((each, trackers[each.short]) for each in recipe.trackers if each.start)
    foreign = [text for pair in begun for text in foreign_rows(session.store, *pair, trained)]
    remarks = (*found, *left_out, *foreign)
    for text in remarks:
        session.say(f"note: {text}")
    phases = tuple(ingested[text] for text in recipe.all_problems) if recipe.phase else ()
    start = Beginning(policy, problems, suites, teacher, remarks, trackers, roles, traces=traces, phases=phases)
    return _of_an_earlier_run(session.store, recipe, start)


def _texts(store: Store, recipe: Recipe, problems: Sequence[Ref]) -> tuple[dict[str, Ref], list[str]]:
    """Return the texts of each file that a wave plans, and remarks on rows left out; BadInputError if it has none."""
    traces, remarks = dict[str, Ref](), list[str]()
    for wave in (wave for each in of_each_phase(recipe) for wave in each.all_waves):
        if wave.traces and wave.traces not in traces:
            traces[wave.traces], left_out = traces_ref(store, wave.traces, problems)
            remarks += left_out
        elif not wave.traces and wave.name in GIVEN:
            refuse_unsolved(store, problems)
    return traces, remarks


def _of_an_earlier_run(store: Store, recipe: Recipe, start: Beginning) -> Beginning:
    """Return a beginning with the tables of an earlier run that the recipe names; BadInputError if they do not fit."""
    named = recipe.begin.named.items()
    found = {table: [resolve_artifact(store, text, table) for text in texts] for table, texts in named}
    for ref in (*found["difficulty"], *found["hints"]):
        refuse_foreign(store, ref, start.problems)
    if found["difficulty"] and not recipe.begin.any_policy:
        refuse_other_policy(store, found["difficulty"][0], start.policy)
    earlier: tuple[Stored, ...] = ()
    if found["rollouts"]:
        max_age = stage_config(recipe, "update", 1, recipe.update).max_age - recipe.overlap
        refuse_unusable(store, found["rollouts"], found["scores"], start.problems, start.policy, max_age)
        earlier = (Stored(found["rollouts"], found["scores"], start.problems),)
    hints, difficulty, plan = (next(iter(found[table]), None) for table in ("hints", "difficulty", "plan"))
    levels = len(stage_config(recipe, "hint", 0, recipe.hint).fractions)
    asks = plan is not None and refuse_odd_plan(store, plan, start.phases or (start.problems,), hints, levels)
    return replace(start, difficulty=difficulty, hints=hints, earlier=earlier, plan=plan, asks_hints=asks)


def _refuse_long(session: Stages, recipe: Recipe, policy: Ref, problems: Ref, suites: Mapping[str, Ref]) -> None:
    """Raise BadInputError if a stage could draw a problem whose prompt does not fit; a curate filter may prevent it."""
    limit = positions(session.store.path(base_ref(session.store, policy) or policy))
    if limit is None:
        return
    longest: dict[tuple[str, PromptConfig], Sampling] = {}
    for each in sorted(samplings(recipe), key=lambda sampling: -sampling.sample.max_tokens):
        if not (each.rollout.is_text or each.filtered):
            longest.setdefault((each.suite, each.rollout.prompt), each)
    for (suite, style), each in longest.items():
        room, drawn = limit - each.sample.max_tokens, suites[suite] if suite else problems
        refuse_long(session.store, policy, drawn, style, room, f"{each.setting}.max_tokens")


def problems_ref(
    session: Stages, text: str, config: IngestConfig | None = None, purpose: str = "train", policy: Ref | None = None
) -> Ref:
    """Return problems by artifact or bundled name, or those of a file through `ingest` with all its checks."""
    path = Path(text)
    if not path.is_file():
        return resolve_artifact(session.store, text, "problems")
    settings = config or IngestConfig()
    measured = {"policy": [policy]} if policy is not None and settings.max_prompt_tokens else {}
    return session.stage(Call("ingest", settings, measured, purpose=purpose, facts=source_facts(text))).ref


def problems_of(store: Store, rollouts: Sequence[Ref]) -> list[Ref]:
    """Return the problems that our own rollouts were made of, by their manifests; empty for rollouts from elsewhere."""
    named = [text for ref in rollouts for text in store.manifest(ref).parents.get("problems", [])]
    return [ref for ref in map(Ref.parse, dict.fromkeys(named)) if store.find(ref) is not None]
