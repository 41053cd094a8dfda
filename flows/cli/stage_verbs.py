"""The stage verbs of the command line: their options; the calls that they stand on are those of the library."""

from typing import Annotated

import typer

from gradus.flows.cli.completion import artifacts
from gradus.flows.cli.waiting import may_wait
from gradus.flows.console.output import answer
from gradus.flows.library import stage_calls
from gradus.flows.library.texts import mapping

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
TokenPolicy = Annotated[
    str | None, typer.Option(help="policy whose tokens of a prompt count", autocompletion=artifacts("checkpoints"))
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
    policy: TokenPolicy = None,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Turn a source into a problems table."""
    made = stage_calls.ingest(source, columns=mapping(maps), strict=strict, policy=policy, set=sets, out=out)
    answer(made.summary, as_json)


def hint(problems: Problems, sets: Sets = None, out: Out = None, as_json: AsJson = False) -> None:
    """Build hints from worked solutions."""
    answer(stage_calls.hint(problems, set=sets, out=out).summary, as_json)


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
    policy: TokenPolicy = None,
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Choose problems, in which order, and say why."""
    made = stage_calls.curate(
        problems,
        difficulty=difficulty,
        filters=filters or (),
        rank=rank,
        top=top,
        sampler=sampler,
        draw=draw,
        policy=policy,
        seed=seed,
        set=sets,
        out=out,
    )
    answer(made.summary, as_json)


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
    made = stage_calls.rollout(plan, problems, policy=policy, engine=engine, seed=seed, set=sets, out=out)
    answer(made.summary, as_json)


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
    columns = mapping(maps)
    made = stage_calls.score(rollouts, rewards=rewards or (), problems=problems, columns=columns, set=sets, out=out)
    answer(made.summary, as_json)


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
    made = stage_calls.update(
        rollouts, scores, policy=policy, reference=reference, teacher=teacher, seed=seed, set=sets, out=out
    )
    answer(made.summary, as_json)


def warmstart(
    problems: Problems,
    policy: Annotated[
        str | None, typer.Option(help="policy to begin with; none: random", autocompletion=artifacts("checkpoints"))
    ] = None,
    seed: Seed = 0,
    sets: Sets = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune on worked solutions, so that RL has something to start from."""
    answer(stage_calls.warmstart(problems, policy=policy, seed=seed, set=sets, out=out).summary, as_json)


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
    made = stage_calls.profile(
        problems,
        policy=policy,
        samples=samples,
        temperature=temperature,
        max_tokens=max_tokens,
        engine=engine,
        device=device,
        rewards=rewards or (),
        seed=seed,
        set=sets,
        out=out,
    )
    answer(made.summary, as_json)


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
    made = stage_calls.evaluate(
        problems,
        policy=policy,
        against=against,
        samples=samples,
        temperature=temperature,
        max_tokens=max_tokens,
        engine=engine,
        device=device,
        rewards=rewards or (),
        seed=seed,
        set=sets,
        out=out,
    )
    answer(made.summary, as_json)


def register_stages(app: typer.Typer) -> None:
    """Add the stage verbs to the program."""
    for verb in STAGE_VERBS:
        app.command(verb.__name__)(may_wait(verb))


STAGE_VERBS = (ingest, profile, curate, hint, rollout, score, update, warmstart, evaluate)
