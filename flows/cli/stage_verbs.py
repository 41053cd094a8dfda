"""The stage verbs of the command line. Flows are imported when a verb runs, so that `--help` is quick."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from gradus.data.errors import UsageError
from gradus.flows.cli.completion import artifacts
from gradus.flows.cli.waiting import may_wait
from gradus.flows.console.output import answer
from gradus.flows.environment import api
from gradus.flows.recipe.config import assign, toml_value
from gradus.flows.recipe.setting_faults import valid
from gradus.tasks.config.base import Config
from gradus.tasks.config.components import FilterConfig
from gradus.tasks.config.curation import CurateConfig, DifficultyConfig, HintConfig, SampleConfig
from gradus.tasks.config.evaluate import EvaluateConfig
from gradus.tasks.config.ingest import IngestConfig
from gradus.tasks.config.learning import UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.config.settings import Home
from gradus.tasks.preflight.abilities import check_engine, check_ks, check_length
from gradus.tasks.preflight.checks import (
    check_components,
    check_inputs,
    check_out,
    check_source,
)
from gradus.tasks.stages.score.verdicts import refuse_without_verdicts

C = TypeVar("C", bound=Config)
Problems = Annotated[
    str,
    typer.Option(
        help="problems: a file, an artifact, bundled:train or bundled:heldout", autocompletion=artifacts("problems")
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        help="policy: bundled, a folder, a checkpoint artifact, or id@revision", autocompletion=artifacts("checkpoints")
    ),
]
Out = Annotated[str | None, typer.Option(help="also write the result here (.parquet, .jsonl or a folder)")]
Sets = Annotated[list[str] | None, typer.Option("--set", help="a setting of the stage, key=value; repeatable")]
Seed = Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="every other seed derives from it")]
AsJson = Annotated[bool, typer.Option("--json", help="one JSON object on stdout")]
Maps = Annotated[list[str] | None, typer.Option("--map", help="rename a column, ours=theirs; repeatable")]
Rewards = Annotated[list[str] | None, typer.Option("--reward", help="NAME[=WEIGHT]; repeatable")]
Samples = Annotated[int, typer.Option("-n", "--samples", min=1, help="completions for each problem")]
Temperature = Annotated[float, typer.Option(min=0.0, help="sampling temperature; 0 is greedy")]
Engine = Annotated[str, typer.Option(help="which engine samples: transformers, vllm or openai")]
Device = Annotated[str, typer.Option(help="where the engine transformers computes: auto, cpu or cuda")]
MaxTokens = Annotated[int, typer.Option(min=1, help="limit of completion tokens")]


def ingest(
    source: Annotated[str, typer.Argument(help="a JSONL or Parquet file, a dataset id, or reasoning-gym:FAMILY")],
    maps: Maps = None,
    strict: Annotated[bool, typer.Option(help="stop at the first row that cannot be used")] = False,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Turn a source into a problems table."""
    base = {"columns": mapping(maps), "strict": strict}
    config = configured(IngestConfig, sets, base)
    check_source(source, config)
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.ingest(source, config, out), as_json)


def hint(problems: Problems, sets: Sets = None, out: Out = None, as_json: AsJson = False) -> None:
    """Build hints from worked solutions."""
    config = configured(HintConfig, sets)
    check_components(config)
    check_inputs(_lake(), problems=problems)
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.hint(problems, config, out), as_json)


def curate(
    problems: Problems,
    difficulty: Annotated[
        str | None, typer.Option(help="difficulty: a file or an artifact", autocompletion=artifacts("difficulty"))
    ] = None,
    filters: Annotated[list[str] | None, typer.Option("--filter", help="NAME[:k=v,...]; repeatable")] = None,
    rank: Annotated[str, typer.Option(help="NAME[:k=v,...], such as historical_std or variance")] = "",
    top: Annotated[int, typer.Option(min=0, help="keep the first so many after ranking")] = 0,
    sampler: Annotated[str, typer.Option(help="NAME[:k=v,...]: all, uniform or variance")] = "all",
    draw: Annotated[int, typer.Option(min=0, help="problems to draw; 0 takes all")] = 0,
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Choose problems, in which order, and say why."""
    base = {
        "filters": [parse_filter(text) for text in filters or []],
        "rank": parse_component(rank, "--rank") if rank else "",
        "top": top,
        "sampler": parse_component(sampler, "--sampler"),
        "draw": draw,
    }
    config = configured(CurateConfig, sets, base)
    if config.hint_level:
        raise UsageError("hint_level needs a table of hints, which this verb does not take", hint="leave it 0")
    check_components(config)
    check_inputs(_lake(), problems=problems, difficulty=difficulty)
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.curate(problems, difficulty, config, seed, out), as_json)


def rollout(
    plan: Annotated[str, typer.Option(help="plan: a file or an artifact", autocompletion=artifacts("plan"))],
    problems: Problems,
    policy: Policy = "bundled",
    engine: Annotated[str, typer.Option(help="which engine samples")] = "transformers",
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Generate the completions of a plan."""
    config = configured(RolloutConfig, sets, {"engine": engine})
    check_inputs(_lake(), plan=plan, problems=problems, policy=policy)
    check_engine(config)
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.rollout(plan, problems, policy, config, seed, out), as_json)


def score(
    rollouts: Annotated[
        str,
        typer.Option(
            help="rollouts: a file with problem_id, completion, answer; or an artifact",
            autocompletion=artifacts("rollouts"),
        ),
    ],
    rewards: Rewards = None,
    problems: Annotated[
        str | None,
        typer.Option(help="problems, where the rollouts have no answer", autocompletion=artifacts("problems")),
    ] = None,
    maps: Maps = None,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Judge completions."""
    config, columns = configured(ScoreConfig, sets, reward_settings(rewards)), mapping(maps)
    check_components(config)
    check_inputs(_lake(), rollouts=rollouts, problems=problems)
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.score(rollouts, problems, config, columns, out), as_json)


def update(
    rollouts: Annotated[list[str], typer.Option(help="rollouts; repeatable", autocompletion=artifacts("rollouts"))],
    scores: Annotated[list[str], typer.Option(help="their scores; repeatable", autocompletion=artifacts("scores"))],
    policy: Policy = "bundled",
    reference: Annotated[
        str | None, typer.Option(help="reference policy for the KL term", autocompletion=artifacts("checkpoints"))
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="policy that a loss distils from", autocompletion=artifacts("checkpoints"))
    ] = None,
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Update a policy from scored rollouts."""
    config = configured(UpdateConfig, sets)
    check_components(config)
    check_inputs(_lake(), rollouts=rollouts, scores=scores, policy=policy, reference=reference, teacher=teacher)
    if config.loads_reference and reference is None:
        why = "kl_coef is set" if config.kl_coef else "a component reads it"
        raise UsageError(f"the objective needs a reference policy ({why})", hint="give --reference")
    if config.needs_teacher and teacher is None:
        raise UsageError("the objective needs a teacher (a loss distils from it)", hint="give --teacher")
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.update(rollouts, scores, policy, reference, config, seed, out, teacher), as_json)


def warmstart(
    problems: Problems,
    policy: Annotated[
        str | None,
        typer.Option(
            help="policy to go on from; none starts from random weights", autocompletion=artifacts("checkpoints")
        ),
    ] = None,
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune on worked solutions, so that RL has something to start from."""
    config = configured(WarmstartConfig, sets)
    check_inputs(_lake(), problems=problems, policy=policy)
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.warmstart(problems, policy, config, seed, out), as_json)


def profile(
    problems: Problems,
    policy: Policy = "bundled",
    samples: Samples = 8,
    temperature: Temperature = 1.0,
    max_tokens: MaxTokens = 96,
    engine: Engine = "transformers",
    device: Device = "auto",
    rewards: Rewards = None,
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure how difficult problems are for a policy."""
    sample = _sample(samples, temperature, max_tokens)
    sampling, others = of_rollouts(sets, engine, device)
    judging, rest = of_stage(ScoreConfig, others)
    judged = configured(ScoreConfig, judging, reward_settings(rewards))
    config = configured(DifficultyConfig, rest)
    refuse_without_verdicts(judged, "profile", config.max_unjudged_frac)
    check_inputs(_lake(), problems=problems, policy=policy)
    check_components(judged)
    check_length(_lake(), policy, max_tokens)
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.profile(problems, policy, sample, config, judged, seed, out, sampling), as_json)


def evaluate(
    problems: Problems,
    policy: Policy = "bundled",
    against: Annotated[
        str | None,
        typer.Option(help="another policy on the same problems and seeds", autocompletion=artifacts("checkpoints")),
    ] = None,
    samples: Samples = 8,
    temperature: Temperature = 1.0,
    max_tokens: MaxTokens = 96,
    engine: Engine = "transformers",
    device: Device = "auto",
    rewards: Rewards = None,
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Say how good a policy is, with intervals."""
    sample = _sample(samples, temperature, max_tokens)
    ks = tuple(sorted({k for k in EvaluateConfig().ks if k < samples} | {samples}))
    sampling, others = of_rollouts(sets, engine, device)
    judging, rest = of_stage(ScoreConfig, others)
    judged = configured(ScoreConfig, judging, reward_settings(rewards))
    config = configured(EvaluateConfig, rest, {"ks": ks})
    refuse_without_verdicts(judged, "evaluate", config.max_unjudged_frac)
    check_inputs(_lake(), problems=problems, policy=policy, against=against)
    check_components(judged)
    check_ks(config.ks, samples)
    for name in filter(None, (policy, against)):
        check_length(_lake(), name, max_tokens)
    check_out(out)
    with api() as ready:
        from gradus.flows import stages

        ready()
        answer(stages.evaluate(problems, policy, against, sample, config, judged, seed, out, sampling), as_json)


def register_stages(app: typer.Typer) -> None:
    """Add the stage verbs to the program."""
    for verb in STAGE_VERBS:
        app.command(verb.__name__)(may_wait(verb))


STAGE_VERBS = (ingest, profile, curate, hint, rollout, score, update, warmstart, evaluate)


def configured(model: type[C], sets: list[str] | None, base: Mapping[str, object] | None = None) -> C:
    """A stage's settings from its options and `--set key=value`; UsageError names the wrong key."""
    body = dict(base or {})
    assign(body, sets or [])
    return valid(model, body)


def _sample(n: int, temperature: float, max_tokens: int) -> SampleConfig:
    return valid(SampleConfig, {"n": n, "temperature": temperature, "max_tokens": max_tokens})


def _lake() -> Path:
    return Home.from_environment().lake


def of_stage(model: type[Config], sets: list[str] | None) -> tuple[list[str], list[str]]:
    """`--set` texts that name a setting of this stage, and the rest: a verb of several stages takes those of each."""
    mine = [text for text in sets or [] if text.partition("=")[0].partition(".")[0].strip() in model.model_fields]
    return mine, [text for text in sets or [] if text not in mine]


def of_rollouts(sets: list[str] | None, engine: str, device: str) -> tuple[RolloutConfig, list[str]]:
    """How a verb that also samples does so, by options and `--set rollout.key=value`; and the other `--set` texts."""
    prefix = "rollout."
    mine = [text.strip().removeprefix(prefix) for text in sets or [] if text.strip().startswith(prefix)]
    rest = [text for text in sets or [] if not text.strip().startswith(prefix)]
    return configured(RolloutConfig, mine, {"engine": engine, "device": device}), rest


def mapping(maps: list[str] | None) -> dict[str, str]:
    """`ours=theirs` texts as a dict."""
    pairs = [text.partition("=") for text in maps or []]
    for ours, separator, theirs in pairs:
        if not (ours and separator and theirs):
            raise UsageError(f"--map {ours}{separator}{theirs} is not ours=theirs", hint="write --map question=prompt")
    return {ours: theirs for ours, _, theirs in pairs}


def parse_component(text: str, option: str) -> dict[str, object]:
    """A component written as `pass_rate:low=0.1,high=0.9` or `path/to/file.py:function:low=0.1`."""
    file, is_file, rest = text.partition(".py:")
    name, _, arguments = rest.partition(":") if is_file else text.partition(":")
    settings: dict[str, object] = {"name": f"{file}.py:{name}" if is_file else name}
    for pair in [p for p in arguments.split(",") if p]:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"{option} {text}: {pair!r} is not k=v", hint=f"write {option} NAME:low=0.1,high=0.9")
        settings[key.strip()] = toml_value(value.strip())
    return settings


def parse_filter(text: str) -> FilterConfig:
    """A filter written as `pass_rate:low=0.1,high=0.9`."""
    return valid(FilterConfig, parse_component(text, "--filter"), f"--filter {text}")


def reward_settings(rewards: list[str] | None) -> dict[str, object]:
    """Return the rewards of a ScoreConfig from `NAME[=WEIGHT]` texts; empty if there are none."""
    return {"rewards": [parse_reward(text).model_dump() for text in rewards]} if rewards else {}


def parse_reward(text: str) -> RewardConfig:
    """A reward written as `math`, `format=0.2` or `path/to/file.py:function=0.5`."""
    name, separator, weight = text.rpartition("=")
    if not separator:
        name, weight = text, "1.0"
    try:
        value = float(weight)
    except ValueError:
        raise UsageError(f"--reward {text}: {weight!r} is not a weight", hint="write --reward math=1.0") from None
    path, colon, _function = name.rpartition(":")
    if not colon:
        return valid(RewardConfig, {"name": name, "weight": value}, f"--reward {text}")
    if not Path(path).is_file():
        raise UsageError(f"--reward {text}: there is no file {path}", hint="write path/to/file.py:function")
    resolved = f"{Path(path).resolve()}:{_function}"
    return valid(RewardConfig, {"name": resolved, "weight": value}, f"--reward {text}")
