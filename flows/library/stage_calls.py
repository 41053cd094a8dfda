"""The stages: each call checks what it is given, runs its flow, and returns the artifact that was made or reused.

Flows, and Prefect with them, are imported when a call has been checked, so that a wrong one is refused at once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, cast

from gradus.components.stage import Stage, take_parameters
from gradus.data.sources.tabular import MAPPED, refuse_fields
from gradus.flows.library.calling import Input, call, computing, named, named_or_none
from gradus.flows.library.results import Artifact
from gradus.flows.library.texts import READ, Component, configured, of_part, of_stage
from gradus.flows.recipe.config import Assignments
from gradus.tasks.config.curation import DifficultyConfig, SampleConfig
from gradus.tasks.config.evaluate import EvaluateConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import SCORE, ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.abilities import check_engine, check_ks, check_length
from gradus.tasks.preflight.checks import check_input, check_inputs, check_out, check_stage
from gradus.tasks.stages.registry import stage_spec
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
    return computed(stage_spec("ingest"), locals())


@call
def hint(problems: Input, *, set: Assignments | None = None, out: Input | None = None) -> Artifact:  # noqa: A002
    """Build hints from worked solutions."""
    return computed(stage_spec("hint"), locals())


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
    return computed(stage_spec("curate"), locals())


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
    return computed(stage_spec("rollout"), locals())


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
    return computed(stage_spec("score"), locals())


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
    return computed(stage_spec("update"), locals())


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
    return computed(stage_spec("warmstart"), locals())


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
    return measured("profile", locals())


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
    return measured("evaluate", locals())


def installed_call(name: str) -> Callable[..., Artifact]:
    """Return the call of a stage of an installed package: its inputs and shorts, then `set` and `out`."""
    stage = stage_spec(name)
    if not stage.verb:
        raise AttributeError(f"the stage {name} runs in trainings alone")

    def run(*args: Any, **named: Any) -> Artifact:
        given = signature(run).bind(*args, **named)
        given.apply_defaults()
        return computed(stage, given.arguments)

    known: dict[str, tuple[Any, Any]] = {role.name: (Any, role.preset) for role in stage.roles}
    known |= {short.name: (Any, short.default) for short in stage.shorts}
    known |= {"seed": (int, 0)} if stage.draws else {}
    take_parameters(run, {**known, "set": (Assignments | None, None), "out": (Input | None, None)})
    run.__name__, run.__doc__ = name, stage.doc
    return call(run)


def measured(verb: str, given: Mapping[str, Any]) -> Artifact:
    """Sample and score every problem, then profile or evaluate."""
    drawn = {"n": given["samples"], "temperature": given["temperature"], "max_tokens": given["max_tokens"]}
    sample, others = of_part("sample", SampleConfig, given["set"], drawn)
    engine = {"engine": given["engine"], "device": given["device"]}
    sampling, others = of_part("rollout", RolloutConfig, others, engine)
    judging, rest = of_stage(ScoreConfig, others)
    rewards = {"rewards": READ["rewards"](given["rewards"], "--reward")} if given["rewards"] else {}
    judged = configured(ScoreConfig, judging, rewards)
    if verb == "evaluate":
        ks = tuple(sorted({k for k in EvaluateConfig().ks if k < sample.n} | {sample.n}))
        config = configured(EvaluateConfig, rest, {"ks": ks})
        check_ks(config.ks, sample.n)
    else:
        config = configured(DifficultyConfig, rest)
    check_stage(SCORE, judged, {})
    refuse_without_verdicts(judged, verb, config.max_unjudged_frac)
    inputs = {role: named(given[role]) for role in ("problems", "policy", "against") if given.get(role) is not None}
    check_inputs(_lake(), **inputs)
    check_engine(sampling)
    for role in inputs.keys() - {"problems"}:
        check_length(_lake(), inputs[role], sample.max_tokens)
    check_out(copy := named_or_none(given["out"]))
    configs: dict[str, Any] = {"sample": sample, "config": config, "score_config": judged, "rollout_config": sampling}
    with computing() as ready:
        from gradus.flows import stages

        ready()
        flow = stages.evaluate if verb == "evaluate" else stages.profile
        return _made(cast("Mapping[str, object]", flow(**inputs, **configs, seed=given["seed"], out=copy)))


def computed(stage: Stage, given: Mapping[str, Any]) -> Artifact:
    """Compute a stage: `given` holds its inputs and shorts by name, beside `set`, `seed` and `out`."""
    base: dict[str, object] = {}
    others: dict[str, object] = {"seed": given["seed"]} if stage.draws else {}
    for short in stage.shorts:
        if (value := given[short.name]) not in (None, "", (), [], {}):
            place = base if short.name in stage.settings.model_fields else others
            place[short.name] = READ[short.read](value, short.flag or f"--{short.name}")
    config = configured(stage.settings, given["set"], base)
    if "columns" in others:
        refuse_fields(cast("Mapping[str, str]", others["columns"]), MAPPED, "rollouts")
    inputs = {role.name: _several(given[role.name]) for role in stage.roles if given[role.name] is not None}
    for role in stage.roles:
        for text in () if role.argument else inputs.get(role.name, ()):
            check_input(_lake(), text, role.of_table)
    check_stage(stage, config, inputs)
    texts = {r.name: inputs[r.name] if r.many else inputs[r.name][0] for r in stage.roles if r.name in inputs}
    check_out(copy := named_or_none(given["out"]))
    with computing() as ready:
        from gradus.flows import stages

        ready()
        return _made(stages.stage_flow(stage.name)(**texts, **others, config=config, out=copy))


def _several(inputs: Input | Sequence[Input]) -> list[str]:
    return [named(inputs)] if isinstance(inputs, str | os.PathLike) else [named(each) for each in inputs]


def _lake() -> Path:
    return Home.from_environment().lake


def _made(answer: Mapping[str, object]) -> Artifact:
    return Artifact(str(answer["artifact"]), _lake(), answer)
