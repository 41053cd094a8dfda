"""The verbs that take rollouts and checkpoints out to other systems, and their rollouts in: export, import."""

from pathlib import Path
from typing import Annotated

import typer

from gradus.flows.cli import options
from gradus.flows.cli.options import AsJson, Maps, Partial, damage, may_wait
from gradus.flows.console.output import answer
from gradus.flows.library import exchange_calls
from gradus.flows.library.texts import mapping

What = Annotated[
    str, typer.Argument(help="a checkpoint; or, with --as, a run or rollouts", autocompletion=options.runs)
]
As = Annotated[str | None, typer.Option("--as", help="verl, trl, trinity, openai or parquet")]
To = Annotated[Path, typer.Option("--to", help="the folder to write to")]
Scores = Annotated[
    str | None,
    typer.Option(help="scores of the rollouts, if they have several", autocompletion=options.artifacts("scores")),
]
Source = Annotated[str, typer.Argument(help="a file, or a folder of files, that another system wrote")]
From = Annotated[str, typer.Option("--from", help="verl, trl, trinity, open-instruct or art")]
Merge = Annotated[bool, typer.Option("--merge", help="merge an adapter into its base")]
Base = Annotated[
    str | None,
    typer.Option(help="what an adapter calls its base, a folder or a hub id@revision, instead of what you called it"),
]
ModelFolder = Annotated[
    str | None, typer.Option(help="folder of the model whose tokenizer makes texts of token ids (open-instruct)")
]
Sampler = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="the policy that sampled them, a folder or an artifact, to learn from them (open-instruct)",
        autocompletion=options.artifacts("checkpoints"),
    ),
]
CorrectAt = Annotated[
    float | None,
    typer.Option("--correct-at", help="a row without a verdict is correct if its reward is at least this"),
]
Where = Annotated[
    str | None,
    typer.Option(help='an SQL condition on the rows, such as "correct" or "reward > 0.5 and hint_level = 0"'),
]
SampledAt = Annotated[
    float, typer.Option("--temperature", min=1e-6, help="temperature that they were sampled at, beside --policy")
]


def export(
    what: What,
    to: To,
    as_: As = None,
    scores: Scores = None,
    where: Where = None,
    merge: Merge = False,
    base: Base = None,
    partial: Partial = False,
    as_json: AsJson = False,
) -> None:
    """Write a checkpoint as a model folder with its card, or rollouts as another system writes its own."""
    with damage(partial) as on_damage:
        found = exchange_calls.export(
            what, to, as_=as_, scores=scores, merge=merge, base=base, where=where, on_damage=on_damage
        )
        answer(found, as_json)


@may_wait
def import_(
    source: Source,
    system: From,
    maps: Maps = None,
    tokenizer: ModelFolder = None,
    policy: Sampler = None,
    temperature: SampledAt = 1.0,
    correct_at: CorrectAt = None,
    as_json: AsJson = False,
) -> None:
    """Take in rollouts of another system, with their rewards, as rollouts, scores, problems and difficulty."""
    found = exchange_calls.import_rollouts(
        source,
        system,
        columns=mapping(maps or ()),
        tokenizer=tokenizer,
        policy=policy,
        temperature=temperature,
        correct_at=correct_at,
    )
    answer(found, as_json)
