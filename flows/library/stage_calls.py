"""The stages: each call checks what it is given, runs its flow, and returns the artifact that was made or reused.

A call has the parameters that the stage declares; src/gradus/__init__.pyi has them for type checkers. Flows, and
Prefect with them, are imported when a call has been checked, so that a wrong one is refused at once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, cast

from gradus.components.stage import Stage, take_parameters
from gradus.data.errors import UsageError
from gradus.data.sources.tabular import MAPPED, refuse_fields
from gradus.flows.library.calling import call, computing
from gradus.flows.library.results import Artifact
from gradus.flows.library.texts import READ, configured, of_part
from gradus.flows.parameters import MEASURING, OUT, SEED, Input, declared, describe, named
from gradus.flows.recipe.assignments import Assignments
from gradus.tasks.config.curation import DifficultyConfig, SampleConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import SCORE, EvaluateConfig, ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.abilities import check_engine, check_ks, check_length
from gradus.tasks.preflight.checks import check_input, check_inputs, check_no_input, check_out, check_stage
from gradus.tasks.stages.score.rewards import refuse_without_verdicts

_COMPONENTS = """

A component is a text, `pass_rate:low=0.1,high=0.9`, or a mapping, `{"name": "pass_rate", "low": 0.1, "high": 0.9}`."""


def __getattr__(name: str) -> Callable[..., Artifact]:
    """Return the call of a stage: its inputs, its shorts, a seed if it draws, then `set` and `out`."""
    try:
        stage = declared(name)
    except UsageError as error:
        raise AttributeError(str(error)) from None

    def run(*args: Any, **given: Any) -> Artifact:
        bound = signature(run).bind(*args, **given)
        bound.apply_defaults()
        return computed(stage, bound.arguments)

    known: dict[str, tuple[Any, Any, str]] = {role.name: (Any, role.preset, role.doc) for role in stage.roles}
    known |= {short.name: (Any, short.default, short.doc) for short in stage.shorts}
    known |= {"seed": (int, 0, SEED.doc)} if stage.draws else {}
    known["set"] = (Assignments | None, None, "settings by their keys, or texts key=value")
    known["out"] = (Input | None, None, OUT.doc)
    take_parameters(run, {name: (kind, preset) for name, (kind, preset, _) in known.items()})
    describe(run, stage.doc + _COMPONENTS, {name: text for name, (*_, text) in known.items()})
    run.__name__ = run.__qualname__ = name
    return call(run)


def computed(stage: Stage, given: Mapping[str, Any]) -> Artifact:
    """Compute a stage: `given` holds its inputs and shorts by name, beside `set`, `seed` and `out`."""
    inputs = {role.name: _several(given[role.name]) for role in stage.roles if given[role.name] is not None}
    check_out(copy := None if given["out"] is None else named(given["out"]))
    if copy is not None:
        check_no_input(copy, (text for texts in inputs.values() for text in texts))
    checked = _measured if stage.name in MEASURING else _configured
    settings = checked(stage, given, inputs)
    texts = {r.name: inputs[r.name] if r.many else inputs[r.name][0] for r in stage.roles if r.name in inputs}
    seed = {"seed": given["seed"]} if stage.draws else {}
    with computing() as ready:
        from gradus.flows import stages

        ready()
        answer = stages.stage_flow(stage.name)(**texts, **settings, **seed, out=copy)
    return Artifact(str(answer["artifact"]), _lake(), answer)


def _configured(stage: Stage, given: Mapping[str, Any], inputs: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Return the settings of a stage, and what else its flow takes, once all of it is checked with the inputs."""
    base, others = dict[str, object](), dict[str, object]()
    for short in stage.shorts:
        if (value := given[short.name]) not in (None, "", (), [], {}):
            place = base if short.name in stage.settings.model_fields else others
            place[short.name] = READ[short.read](value, short.flag or f"--{short.name}")
    config = configured(stage.settings, given["set"], base)
    if "columns" in others:
        refuse_fields(cast("Mapping[str, str]", others["columns"]), MAPPED, "rollouts")
    for role in stage.roles:
        for text in () if role.argument else inputs.get(role.name, ()):
            check_input(_lake(), text, role.of_table)
    check_stage(stage, config, inputs)
    return {**others, "config": config}


def _measured(stage: Stage, given: Mapping[str, Any], inputs: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Return the settings by which problems are sampled, scored and measured, once checked with the inputs."""
    drawn = {"n": given["samples"], "temperature": given["temperature"], "max_tokens": given["max_tokens"]}
    sample, others = of_part("sample", SampleConfig, given["set"], drawn)
    engine = {"engine": given["engine"], "device": given["device"]}
    sampling, others = of_part("rollout", RolloutConfig, others, engine)
    judging = {key: each for key, each in others.items() if key.partition(".")[0].strip() in ScoreConfig.model_fields}
    rest = {key: each for key, each in others.items() if key not in judging}
    rewards = {"rewards": READ["rewards"](given["rewards"], "--reward")} if given["rewards"] else {}
    judged = configured(ScoreConfig, judging, rewards)
    if stage.name == "evaluate":
        ks = tuple(sorted({k for k in EvaluateConfig().ks if k < sample.n} | {sample.n}))
        config = configured(EvaluateConfig, rest, {"ks": ks})
        check_ks(config.ks, sample.n)
    else:
        config = configured(DifficultyConfig, rest)
    check_stage(SCORE, judged, {})
    refuse_without_verdicts(judged, stage.name, config.max_unjudged_frac)
    check_inputs(_lake(), **{role: list(texts) for role, texts in inputs.items()})
    check_engine(sampling)
    for role in inputs.keys() - {"problems"}:
        check_length(_lake(), inputs[role][0], sample.max_tokens)
    return {"sample": sample, "config": config, "score_config": judged, "rollout_config": sampling}


def _several(inputs: Input | Sequence[Input]) -> list[str]:
    return [named(inputs)] if isinstance(inputs, str | os.PathLike) else [named(each) for each in inputs]


def _lake() -> Path:
    return Home.from_environment().lake
