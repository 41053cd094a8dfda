"""The stages: each call checks what it is given, runs its flow, and returns the artifact that was made or reused.

Flows, and Prefect with them, are imported when a call has been checked, so that a wrong one is refused at once.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradus.data.errors import UsageError
from gradus.data.sources.tabular import MAPPED, refuse_fields
from gradus.flows.library.calling import Input, call, computing, named, named_or_none
from gradus.flows.library.results import Artifact
from gradus.flows.library.texts import (
    Component,
    configured,
    of_rollouts,
    of_stage,
    parse_component,
    parse_filter,
    reward_settings,
    sampled,
)
from gradus.flows.recipe.config import Assignments
from gradus.tasks.config.curation import CurateConfig, DifficultyConfig, HintConfig
from gradus.tasks.config.evaluate import EvaluateConfig
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.config.learning import UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.abilities import check_engine, check_ks, check_length
from gradus.tasks.preflight.checks import check_components, check_inputs, check_out, check_source
from gradus.tasks.stages.score.verdicts import refuse_without_verdicts


@call
def ingest(
    source: Input,
    *,
    columns: Mapping[str, str] | None = None,
    strict: bool = False,
    policy: Input | None = None,
    set: Assignments | None = None,  # noqa: A002 - called as on the command line, here and below
    out: Input | None = None,
) -> Artifact:
    """Turn a source into a problems table: a JSONL or Parquet file, a dataset id, or reasoning-gym:FAMILY.

    `columns` renames, ours by theirs; `policy` is the one whose tokens the setting max_prompt_tokens counts.
    """
    base = {"columns": dict(columns or {}), "strict": strict}
    config = configured(IngestConfig, set, base)
    text, model, copy = named(source), named_or_none(policy), named_or_none(out)
    check_source(text, config)
    check_inputs(_lake(), policy=model)
    if bool(model) != bool(config.max_prompt_tokens):
        raise UsageError("--policy goes with --set max_prompt_tokens=N", hint="give both, or neither")
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.ingest(text, config, copy, model))


@call
def hint(problems: Input, *, set: Assignments | None = None, out: Input | None = None) -> Artifact:  # noqa: A002
    """Build hints from worked solutions."""
    config, table, copy = configured(HintConfig, set), named(problems), named_or_none(out)
    check_components(config)
    check_inputs(_lake(), problems=table)
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.hint(table, config, copy))


@call
def curate(
    problems: Input,
    *,
    difficulty: Input | None = None,
    filters: Sequence[Component] = (),
    rank: Component = "",
    top: int = 0,
    sampler: Component = "all",
    draw: int = 0,
    policy: Input | None = None,
    seed: int = 0,
    set: Assignments | None = None,  # noqa: A002
    out: Input | None = None,
) -> Artifact:
    """Choose problems, in which order, and say why.

    A filter, ranking or sampler is `pass_rate:low=0.1,high=0.9` or `{"name": "pass_rate", "low": 0.1, "high": 0.9}`.
    """
    base = {
        "filters": [parse_filter(each) for each in filters],
        "rank": parse_component(rank, "--rank") if rank else "",
        "top": top,
        "sampler": parse_component(sampler, "--sampler"),
        "draw": draw,
    }
    config = configured(CurateConfig, set, base)
    table, measured, copy = named(problems), named_or_none(difficulty), named_or_none(out)
    counting = named_or_none(policy)
    check_components(config)
    check_inputs(_lake(), problems=table, difficulty=measured, policy=counting)
    if bool(counting) != config.counts_tokens:
        raise UsageError("--policy goes with --filter prompt_tokens:high=N", hint="give both, or neither")
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.curate(table, measured, config, seed, copy, counting))


@call
def rollout(
    plan: Input,
    problems: Input,
    *,
    policy: Input = "bundled",
    engine: str = "transformers",
    seed: int = 0,
    set: Assignments | None = None,  # noqa: A002
    out: Input | None = None,
) -> Artifact:
    """Generate the completions of a plan."""
    config = configured(RolloutConfig, set, {"engine": engine})
    asked, table, model, copy = named(plan), named(problems), named(policy), named_or_none(out)
    check_inputs(_lake(), plan=asked, problems=table, policy=model)
    check_engine(config)
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.rollout(asked, table, model, config, seed, copy))


@call
def score(
    rollouts: Input,
    *,
    rewards: Sequence[Component] = (),
    problems: Input | None = None,
    columns: Mapping[str, str] | None = None,
    set: Assignments | None = None,  # noqa: A002
    out: Input | None = None,
) -> Artifact:
    """Judge completions; those of an artifact have their problems already.

    A reward is `math`, `format=0.2`, `path/to/file.py:function`, or `{"name": "math", "weight": 0.5}`.
    """
    config, given = configured(ScoreConfig, set, reward_settings(rewards)), dict(columns or {})
    rows, table, copy = named(rollouts), named_or_none(problems), named_or_none(out)
    refuse_fields(given, MAPPED, "rollouts")
    check_components(config)
    check_inputs(_lake(), rollouts=rows, problems=table)
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.score(rows, table, config, given, copy))


@call
def update(
    rollouts: Input | Sequence[Input],
    scores: Input | Sequence[Input],
    *,
    policy: Input = "bundled",
    reference: Input | None = None,
    teacher: Input | None = None,
    seed: int = 0,
    set: Assignments | None = None,  # noqa: A002
    out: Input | None = None,
) -> Artifact:
    """Update a policy from scored rollouts; of several tables, scores are in the order of their rollouts."""
    config, copy = configured(UpdateConfig, set), named_or_none(out)
    rows, judged, model = _several(rollouts), _several(scores), named(policy)
    kept, taught = named_or_none(reference), named_or_none(teacher)
    check_components(config)
    check_inputs(_lake(), rollouts=rows, scores=judged, policy=model, reference=kept, teacher=taught)
    if config.loads_reference and kept is None:
        why = "kl_coef is set" if config.kl_coef else "a component reads it"
        raise UsageError(f"the objective needs a reference policy ({why})", hint="give --reference")
    if config.needs_teacher and taught is None:
        raise UsageError("the objective needs a teacher (a loss distils from it)", hint="give --teacher")
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.update(rows, judged, model, kept, config, seed, copy, taught))


@call
def warmstart(
    problems: Input,
    *,
    policy: Input | None = None,
    seed: int = 0,
    set: Assignments | None = None,  # noqa: A002
    out: Input | None = None,
) -> Artifact:
    """Fine-tune on worked solutions, from random weights or from a policy."""
    config = configured(WarmstartConfig, set)
    table, model, copy = named(problems), named_or_none(policy), named_or_none(out)
    check_inputs(_lake(), problems=table, policy=model)
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.warmstart(table, model, config, seed, copy))


@call
def profile(
    problems: Input,
    *,
    policy: Input = "bundled",
    samples: int = 8,
    temperature: float = 1.0,
    max_tokens: int = 96,
    engine: str = "transformers",
    device: str = "auto",
    rewards: Sequence[Component] = (),
    seed: int = 0,
    set: Assignments | None = None,  # noqa: A002
    out: Input | None = None,
) -> Artifact:
    """Measure how difficult problems are for a policy.

    `set` takes settings of the difficulty and of the scores; others as `sample.KEY` and `rollout.KEY`.
    """
    sample, others = sampled(set, samples, temperature, max_tokens)
    sampling, others = of_rollouts(others, engine, device)
    judging, rest = of_stage(ScoreConfig, others)
    judged = configured(ScoreConfig, judging, reward_settings(rewards))
    config = configured(DifficultyConfig, rest)
    table, model, copy = named(problems), named(policy), named_or_none(out)
    refuse_without_verdicts(judged, "profile", config.max_unjudged_frac)
    check_inputs(_lake(), problems=table, policy=model)
    check_engine(sampling)
    check_components(judged)
    check_length(_lake(), model, sample.max_tokens)
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.profile(table, model, sample, config, judged, seed, copy, sampling))


@call
def evaluate(
    problems: Input,
    *,
    policy: Input = "bundled",
    against: Input | None = None,
    samples: int = 8,
    temperature: float = 1.0,
    max_tokens: int = 96,
    engine: str = "transformers",
    device: str = "auto",
    rewards: Sequence[Component] = (),
    seed: int = 0,
    set: Assignments | None = None,  # noqa: A002
    out: Input | None = None,
) -> Artifact:
    """Measure how good a policy is, with intervals; `against` is another one on the same problems and seeds."""
    sample, others = sampled(set, samples, temperature, max_tokens)
    ks = tuple(sorted({k for k in EvaluateConfig().ks if k < sample.n} | {sample.n}))
    sampling, others = of_rollouts(others, engine, device)
    judging, rest = of_stage(ScoreConfig, others)
    judged = configured(ScoreConfig, judging, reward_settings(rewards))
    config = configured(EvaluateConfig, rest, {"ks": ks})
    table, model, other, copy = named(problems), named(policy), named_or_none(against), named_or_none(out)
    refuse_without_verdicts(judged, "evaluate", config.max_unjudged_frac)
    check_inputs(_lake(), problems=table, policy=model, against=other)
    check_engine(sampling)
    check_components(judged)
    check_ks(config.ks, sample.n)
    for each in filter(None, (model, other)):
        check_length(_lake(), each, sample.max_tokens)
    check_out(copy)
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.evaluate(table, model, other, sample, config, judged, seed, copy, sampling))


def _several(inputs: Input | Sequence[Input]) -> list[str]:
    return [named(inputs)] if isinstance(inputs, str | os.PathLike) else [named(each) for each in inputs]


def _lake() -> Path:
    return Home.from_environment().lake


def _made(answer: Mapping[str, object]) -> Artifact:
    return Artifact(str(answer["artifact"]), _lake(), answer)
