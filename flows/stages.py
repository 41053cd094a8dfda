"""One Prefect flow per stage, to schedule or rerun alone on files or artifacts.

Every parameter is plain JSON, so each flow can be deployed (see gradus.flows.serve). Every flow returns what `--json`
prints.
"""

import contextlib
import os
import time
from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from gradus.components.settings import Config
from gradus.data.lake.store import Ref
from gradus.flows.loop.inputs import problems_of, problems_ref
from gradus.flows.session import RunSpec, open_session
from gradus.flows.verbs import gradus_flow
from gradus.tasks.artifacts.copies import export
from gradus.tasks.artifacts.policies import refuse_training
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.config.curation import CurateConfig, DifficultyConfig, HintConfig, SampleConfig
from gradus.tasks.config.evaluate import EvaluateConfig
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.config.learning import UpdateConfig, WarmstartConfig
from gradus.tasks.config.redaction import refuse_credentials
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.abilities import check_ks
from gradus.tasks.runtime.calls import Outcome
from gradus.tasks.runtime.stage_adapter import Session
from gradus.tasks.stages.score.verdicts import refuse_without_verdicts

Answer: TypeAlias = Mapping[str, object]
"""The counts that the stage reported, and where its artifact is."""


@contextlib.contextmanager
def alone(verb: str, seed: int = 0) -> Generator[Session]:
    """A session for one verb on its own, named by the time it began, the process, and a number within the second."""
    name = f"{verb}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    num_before = len(list(Home.from_environment().runs.glob(f"{name}*")))
    name = f"{name}-{num_before + 1}" if num_before else name
    with open_session(RunSpec(name=name, verb=verb, seed=seed)) as session:
        yield session


def _answer(session: Session, outcome: Outcome, out: str | None, started: float) -> Answer:
    path = export(session.store, outcome.ref, Path(out)) if out else session.store.path(outcome.ref)
    return {
        **outcome.summary,
        "reused": outcome.reused,
        "seconds": round(time.perf_counter() - started, 3),
        "artifact": str(outcome.ref),
        "out": str(path),
    }


@gradus_flow("ingest")
def ingest(
    source: str, config: IngestConfig | None = None, out: str | None = None, policy: str | None = None
) -> Answer:
    """Problems from a file, a Hugging Face dataset or a reasoning-gym family.

    Args:
        source: A JSONL or Parquet file, a Hugging Face dataset id, or reasoning-gym:FAMILY.
        config: Settings of the stage; what is left out keeps its default.
        out: Also write the result here (.parquet, .jsonl or a folder).
        policy: Policy whose tokens max_prompt_tokens counts: bundled, a folder, a checkpoint artifact, or id@revision.
    """
    started = time.perf_counter()
    refuse_credentials([source])
    settings = (config or IngestConfig()).model_copy(update={"source": source})
    with alone("ingest") as session:
        inputs = {"policy": [resolve_artifact(session.store, policy, "checkpoints")]} if policy else {}
        return _answer(session, session.stage("ingest", settings, inputs), out, started)


@gradus_flow("hint")
def hint(problems: str, config: HintConfig | None = None, out: str | None = None) -> Answer:
    """Hints from worked solutions.

    Args:
        problems: A file, a folder, an artifact, bundled:train or bundled:heldout.
        config: Settings of the stage; what is left out keeps its default.
        out: Also write the result here (.parquet, .jsonl or a folder).
    """
    return _single("hint", config or HintConfig(), {"problems": problems}, out)


@gradus_flow("curate")
def curate(
    problems: str,
    difficulty: str | None = None,
    config: CurateConfig | None = None,
    seed: int = 0,
    out: str | None = None,
    policy: str | None = None,
) -> Answer:
    """A plan: which problems, in which order, and why.

    Args:
        problems: A file, a folder, an artifact, bundled:train or bundled:heldout.
        difficulty: Difficulty of the problems: a file or an artifact.
        config: Settings of the stage; what is left out keeps its default.
        seed: Every other seed derives from it.
        out: Also write the result here (.parquet, .jsonl or a folder).
        policy: Policy whose tokens the filter prompt_tokens counts: bundled, a folder, a checkpoint artifact, or
            id@revision.
    """
    inputs = {"problems": problems, "difficulty": difficulty, "policy": policy}
    return _single("curate", config or CurateConfig(), inputs, out, seed)


@gradus_flow("rollout")
def rollout(
    plan: str,
    problems: str,
    policy: str = "bundled",
    config: RolloutConfig | None = None,
    seed: int = 0,
    out: str | None = None,
) -> Answer:
    """Completions of a plan by a policy.

    Args:
        plan: What to sample: a plan artifact or a file.
        problems: A file, a folder, an artifact, bundled:train or bundled:heldout.
        policy: bundled, a folder, a checkpoint artifact, or id@revision.
        config: Settings of the stage; what is left out keeps its default.
        seed: Every other seed derives from it.
        out: Also write the result here (.parquet, .jsonl or a folder).
    """
    inputs = {"plan": plan, "problems": problems, "policy": policy}
    return _single("rollout", config or RolloutConfig(), inputs, out, seed)


@gradus_flow("score")
def score(
    rollouts: str,
    problems: str | None = None,
    config: ScoreConfig | None = None,
    columns: dict[str, str] | None = None,
    out: str | None = None,
) -> Answer:
    """Rewards of rollouts, ours or anybody's.

    Args:
        rollouts: Rollouts: an artifact or a file, ours or anybody's.
        problems: A file, a folder, an artifact, bundled:train or bundled:heldout; those of our own rollouts are found.
        config: Settings of the stage; what is left out keeps its default.
        columns: Names of the columns, ours = theirs.
        out: Also write the result here (.parquet, .jsonl or a folder).
    """
    inputs = {"rollouts": rollouts, "problems": problems}
    return _single("score", config or ScoreConfig(), inputs, out, columns=columns)


@gradus_flow("update")
def update(
    rollouts: list[str],
    scores: list[str],
    policy: str = "bundled",
    reference: str | None = None,
    config: UpdateConfig | None = None,
    seed: int = 0,
    out: str | None = None,
    teacher: str | None = None,
) -> Answer:
    """One policy update from scored rollouts.

    Args:
        rollouts: Rollouts: artifacts or files.
        scores: Scores of these rollouts, in the same order.
        policy: bundled, a folder, a checkpoint artifact, or id@revision.
        reference: Policy that the KL term compares with.
        config: Settings of the stage; what is left out keeps its default.
        seed: Every other seed derives from it.
        out: Also write the result here (.parquet, .jsonl or a folder).
        teacher: Policy that a loss distils from.
    """
    inputs = {
        "rollouts": rollouts,
        "scores": scores,
        "policy": policy,
        "reference": reference,
        "teacher": teacher,
    }
    return _single("update", config or UpdateConfig(), inputs, out, seed)


@gradus_flow("warmstart")
def warmstart(
    problems: str,
    policy: str | None = None,
    config: WarmstartConfig | None = None,
    seed: int = 0,
    out: str | None = None,
) -> Answer:
    """Supervised fine-tuning on worked solutions, from random weights or from a policy.

    Args:
        problems: A file, a folder, an artifact, bundled:train or bundled:heldout.
        policy: bundled, a folder, a checkpoint artifact, or id@revision.
        config: Settings of the stage; what is left out keeps its default.
        seed: Every other seed derives from it.
        out: Also write the result here (.parquet, .jsonl or a folder).
    """
    return _single("warmstart", config or WarmstartConfig(), {"problems": problems, "policy": policy}, out, seed)


@gradus_flow("profile")
def profile(
    problems: str,
    policy: str = "bundled",
    sample: SampleConfig | None = None,
    config: DifficultyConfig | None = None,
    score_config: ScoreConfig | None = None,
    seed: int = 0,
    out: str | None = None,
    rollout_config: RolloutConfig | None = None,
) -> Answer:
    """Difficulty of problems for a policy: rollouts, scored.

    Args:
        problems: A file, a folder, an artifact, bundled:train or bundled:heldout.
        policy: bundled, a folder, a checkpoint artifact, or id@revision.
        sample: How each problem is sampled.
        config: How difficulty is counted.
        score_config: How completions are judged.
        seed: Every other seed derives from it.
        out: Also write the result here (.parquet, .jsonl or a folder).
        rollout_config: With which engine, where and how completions are sampled.
    """
    started = time.perf_counter()
    settings = config or DifficultyConfig()
    refuse_without_verdicts(score_config or ScoreConfig(), "profile", settings.max_unjudged_frac)
    with alone("profile", seed) as session:
        _problems, rollouts, scores = _sampled(session, problems, policy, sample, score_config, rollout_config)
        inputs = {"rollouts": [rollouts], "scores": [scores]}
        return _answer(session, session.stage("difficulty", settings, inputs), out, started)


@gradus_flow("evaluate")
def evaluate(
    problems: str,
    policy: str = "bundled",
    against: str | None = None,
    sample: SampleConfig | None = None,
    config: EvaluateConfig | None = None,
    score_config: ScoreConfig | None = None,
    seed: int = 0,
    out: str | None = None,
    rollout_config: RolloutConfig | None = None,
) -> Answer:
    """pass@k, maj@k and lengths of a policy, beside another on the same problems and seeds.

    Args:
        problems: A file, a folder, an artifact, bundled:train or bundled:heldout.
        policy: bundled, a folder, a checkpoint artifact, or id@revision.
        against: Another policy, evaluated on the same problems and seeds.
        sample: How each problem is sampled.
        config: Settings of the stage; what is left out keeps its default.
        score_config: How completions are judged.
        seed: Every other seed derives from it.
        out: Also write the result here (.parquet, .jsonl or a folder).
        rollout_config: With which engine, where and how completions are sampled.
    """
    started = time.perf_counter()
    settings = config or EvaluateConfig()
    refuse_without_verdicts(score_config or ScoreConfig(), "evaluate", settings.max_unjudged_frac)
    check_ks(settings.ks, (sample or SampleConfig()).n)
    with alone("evaluate", seed) as session:

        def of(name: str, baseline: list[Ref]) -> Outcome:
            table, rollouts, scores = _sampled(session, problems, name, sample, score_config, rollout_config)
            inputs = {"problems": [table], "rollouts": [rollouts], "scores": [scores], "baseline": baseline}
            return session.stage("evaluate", settings, inputs)

        baseline = [of(against, []).ref] if against else []
        return _answer(session, of(policy, baseline), out, started)


def _sampled(
    session: Session,
    problems: str,
    policy: str,
    sample: SampleConfig | None,
    score_config: ScoreConfig | None,
    rollout_config: RolloutConfig | None,
) -> tuple[Ref, Ref, Ref]:
    """Roll out and score every problem of a table."""
    table = problems_ref(session, problems)
    plan = session.stage("curate", CurateConfig(sample=sample or SampleConfig()), {"problems": [table]}).ref
    inputs = {"plan": [plan], "problems": [table], "policy": [resolve_artifact(session.store, policy, "checkpoints")]}
    rollouts = session.stage("rollout", rollout_config or RolloutConfig(), inputs).ref
    scored = {"rollouts": [rollouts], "problems": [table]}
    return table, rollouts, session.stage("score", score_config or ScoreConfig(), scored).ref


def _single(
    verb: str,
    config: Config,
    inputs: Mapping[str, str | list[str] | None],
    out: str | None,
    seed: int = 0,
    columns: dict[str, str] | None = None,
) -> Answer:
    """One stage alone: inputs resolved by role, run or reused, written out."""
    started = time.perf_counter()
    with alone(verb, seed) as session:
        refs = {role: _resolve(session, role, texts, columns) for role, texts in inputs.items() if texts}
        if verb == "score" and "problems" not in refs:
            refs["problems"] = problems_of(session.store, refs["rollouts"])
        for trained in refs.get("policy", []) if verb in ("update", "warmstart") else []:
            refuse_training(session.store, trained, config.lora if isinstance(config, UpdateConfig) else None)
        return _answer(session, session.stage(verb, config, refs), out, started)


def _resolve(session: Session, role: str, texts: str | list[str], columns: dict[str, str] | None) -> list[Ref]:
    table = "checkpoints" if role in ("policy", "reference", "teacher") else role
    named = [texts] if isinstance(texts, str) else texts
    if role == "problems":
        return [problems_ref(session, text) for text in named]
    return [resolve_artifact(session.store, text, table, columns) for text in named]
