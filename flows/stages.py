"""One Prefect flow per stage, to schedule or rerun alone on files or artifacts: made from the declaration of the stage.

`profile` and `evaluate` sample and score before it. Every parameter is plain JSON, so each flow can be
deployed (see gradus.flows.serve). Every flow returns what `--json` prints.
"""

import contextlib
import os
import time
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from prefect.flows import Flow

from gradus.components.settings import Config
from gradus.components.stage import CHECKPOINTS, Role, Stage, take_parameters
from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref
from gradus.data.records import Json
from gradus.flows.loop.inputs import problems_of, problems_ref
from gradus.flows.parameters import MEASURING, OUT, SEED, declared, describe
from gradus.flows.recipe.suites import Suite
from gradus.flows.session import RunSpec, open_session
from gradus.flows.verbs import gradus_flow
from gradus.tasks.artifacts.policies import refuse_training
from gradus.tasks.artifacts.resolve import export, resolve_artifact
from gradus.tasks.config.curation import CurateConfig, DifficultyConfig, SampleConfig
from gradus.tasks.config.redaction import refuse_credentials
from gradus.tasks.config.rollout import RESEEDS, RolloutConfig
from gradus.tasks.config.score import EvaluateConfig, ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.identity.pins import source_facts
from gradus.tasks.preflight.abilities import check_ks
from gradus.tasks.runtime.calls import Call, Outcome
from gradus.tasks.runtime.stage_adapter import Session
from gradus.tasks.stages.score.rewards import refuse_without_verdicts

StageAnswer: TypeAlias = Mapping[str, object]
"""The counts that the stage reported, and where its artifact is."""


@contextlib.contextmanager
def alone(verb: str, seed: int = 0) -> Generator[Session]:
    """A session for one verb on its own, named by the time it began, the process, and a number within the second."""
    name = f"{verb}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    num_before = len(list(Home.from_environment().runs.glob(f"{name}*")))
    name = f"{name}-{num_before + 1}" if num_before else name
    with open_session(RunSpec(name=name, verb=verb, seed=seed)) as session:
        yield session


def _answer(session: Session, outcome: Outcome, out: str | None, started: float) -> StageAnswer:
    path = export(session.store, outcome.ref, Path(out)) if out else session.store.path(outcome.ref)
    return {
        **outcome.summary,
        "reused": outcome.reused,
        "seconds": round(time.perf_counter() - started, 3),
        "artifact": str(outcome.ref),
        "out": str(path),
    }


@cache
def stage_flow(name: str) -> Flow[..., StageAnswer]:
    """Return the flow of a stage: one parameter for each of its inputs, its settings, a seed if it draws."""
    stage, measures = declared(name), name in MEASURING

    def run(**given: Any) -> StageAnswer:
        return _measured(stage, **given) if measures else _single(stage, **given)

    known: dict[str, tuple[Any, Any, str]] = {role.name: (role.type, role.preset, role.doc) for role in stage.roles}
    if measures:
        known["sample"] = (SampleConfig | None, None, "sampling of each problem")
        known["rollout_config"] = (RolloutConfig | None, None, "engine, place and manner of sampling")
        known["score_config"] = (ScoreConfig | None, None, "judging of completions")
    elif any(short.name not in stage.settings.model_fields for short in stage.shorts):
        known["columns"] = (dict[str, str] | None, None, "names of the columns, ours = theirs")
    known["config"] = (stage.settings | None, None, "settings of the stage; what is left out keeps its default")
    known |= {"seed": (int, 0, SEED.doc)} if stage.draws else {}
    known["out"] = (str | None, None, OUT.doc)
    take_parameters(run, {name: (kind, preset) for name, (kind, preset, _) in known.items()})
    describe(run, stage.doc, {name: text for name, (*_, text) in known.items()})
    run.__name__ = run.__qualname__ = stage.name
    return gradus_flow(stage.name)(run)


def _single(stage: Stage, **given: Any) -> StageAnswer:
    started = time.perf_counter()
    config: Config = given.pop("config", None) or stage.settings()
    out, seed, columns = given.pop("out", None), given.pop("seed", 0), given.pop("columns", None)
    facts: dict[str, Json] = dict(source_facts(given.pop("source"))) if "source" in given else {}
    if stage.name == "rollout" and seed:
        facts[RESEEDS] = True
    refuse_credentials([str(facts.get("source", ""))])
    with alone(stage.name, seed) as session:
        roles = {role.name: role for role in stage.roles}
        refs = {name: _resolved(session, roles[name], texts, columns) for name, texts in given.items() if texts}
        if "problems" in roles and "problems" not in refs and "rollouts" in refs:
            refs["problems"] = problems_of(session.store, refs["rollouts"])
        for trained in refs.get("policy", ()) if stage.makes == CHECKPOINTS else ():
            refuse_training(session.store, trained, getattr(config, "lora", None))
        return _answer(session, session.stage(Call(stage.name, config, refs, facts=facts)), out, started)


def _measured(
    stage: Stage,
    problems: str,
    policy: str = "bundled",
    against: str | None = None,
    sample: SampleConfig | None = None,
    config: DifficultyConfig | EvaluateConfig | None = None,
    score_config: ScoreConfig | None = None,
    seed: int = 0,
    out: str | None = None,
    rollout_config: RolloutConfig | None = None,
) -> StageAnswer:
    """Sample and score every problem, then run a stage on the scores; `against` is measured first."""
    started, settings = time.perf_counter(), config or stage.settings()
    drawn, judged = sample or SampleConfig(), score_config or ScoreConfig()
    assert isinstance(settings, DifficultyConfig | EvaluateConfig)
    refuse_without_verdicts(judged, stage.name, settings.max_unjudged_frac)
    if isinstance(settings, EvaluateConfig):
        check_ks(settings.ks, drawn.n)
    with alone(stage.name, seed) as session:
        table = [problems_ref(session, problems)]
        plan = session.stage(Call("curate", CurateConfig(sample=drawn), {"problems": table})).ref

        def of(name: str, baseline: list[Ref]) -> Outcome:
            inputs = {"plan": [plan], "problems": table, "policy": [resolve_artifact(session.store, name, CHECKPOINTS)]}
            rollouts = [session.stage(Call("rollout", rollout_config or RolloutConfig(), inputs)).ref]
            scores = [session.stage(Call("score", judged, {"rollouts": rollouts, "problems": table})).ref]
            if isinstance(settings, DifficultyConfig):
                return session.stage(Call("difficulty", settings, {"rollouts": rollouts, "scores": scores}))
            found = {"problems": table, "rollouts": rollouts, "scores": scores, "baseline": baseline}
            return session.stage(Call("evaluate", settings, found, facts={"suite": Suite().name}))

        baseline = [of(against, []).ref] if against else []
        return _answer(session, of(policy, baseline), out, started)


def __getattr__(name: str) -> Flow[..., StageAnswer]:
    """Return the flow of a stage, which a deployment finds as gradus.flows.stages.NAME."""
    try:
        return stage_flow(name)
    except UsageError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None


def _resolved(session: Session, role: Role, texts: str | list[str], columns: dict[str, str] | None) -> list[Ref]:
    named = [texts] if isinstance(texts, str) else texts
    if role.of_table == "problems":
        purpose = "train" if role.name == "problems" else role.name
        return [problems_ref(session, text, purpose=purpose) for text in named]
    return [resolve_artifact(session.store, text, role.of_table, columns) for text in named]
