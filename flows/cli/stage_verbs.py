"""The stage verbs of the command line, made from declarations; profile and evaluate are of several stages."""

from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand
from typer.main import get_command_from_info
from typer.models import CommandInfo

from gradus.components.stage import Role, Short, Stage, take_parameters
from gradus.flows.cli.options import AsJson, Sets, artifacts, may_wait
from gradus.flows.console.output import answer
from gradus.flows.library import stage_calls
from gradus.tasks.stages.registry import STAGES, installed_names, stage_spec

Out = Annotated[str | None, typer.Option(help="also write the result here (.parquet, .jsonl or a folder)")]
Seed = Annotated[int, typer.Option(min=-(2**63), max=2**63 - 1, help="every other seed derives from it")]
_EVERY: Mapping[str, tuple[Any, Any]] = {"sets": (Sets, None), "out": (Out, None), "as_json": (AsJson, False)}
"""Options of all stages, each with its type and default."""
_PROBLEMS = typer.Option(
    help="problems: a file, an artifact, bundled:train or bundled:heldout", autocompletion=artifacts("problems")
)
_POLICY = typer.Option(
    help="policy: bundled, a folder, a checkpoint artifact, or id@revision", autocompletion=artifacts("checkpoints")
)
_AGAINST = typer.Option(help="another policy on the same problems and seeds", autocompletion=artifacts("checkpoints"))
_SAMPLING: Mapping[str, tuple[Any, Any]] = {
    "samples": (Annotated[int, typer.Option("-n", "--samples", min=1, help="completions for each problem")], 8),
    "temperature": (Annotated[float, typer.Option(min=0.0, help="sampling temperature; 0 is greedy")], 1.0),
    "max_tokens": (Annotated[int, typer.Option(min=1, help="limit of completion tokens")], 96),
    "engine": (Annotated[str, typer.Option(help="which engine samples: transformers, vllm or openai")], "transformers"),
    "device": (
        Annotated[str, typer.Option(help="where the engine transformers computes: auto, cpu or cuda")],
        "auto",
    ),
    "rewards": (Annotated[list[str] | None, typer.Option("--reward", help="NAME[=WEIGHT]; repeatable")], None),
    "seed": (Seed, 0),
    **_EVERY,
}
"""Options of the verbs that sample and score."""


def verb(stage: Stage) -> Callable[..., None]:
    """Make the verb of a stage: its inputs and shorts as options, then those that all stages have."""

    def run(*, as_json: bool, **given: Any) -> None:
        made = stage_calls.computed(stage, {**given, "set": given.pop("sets")})
        answer(made.summary, as_json)

    known: dict[str, tuple[Any, Any]] = {each.name: _option(each) for each in stage.takes}
    take_parameters(run, {**known, **({"seed": (Seed, 0)} if stage.draws else {}), **_EVERY})
    run.__name__, run.__doc__ = stage.name, stage.doc
    return run


def _option(each: Role | Short) -> tuple[Any, Any]:
    """The annotation and the default of an option."""
    if isinstance(each, Short):
        kind = each.type | None if each.default is None else each.type
        option = typer.Option(*filter(None, [each.flag]), min=each.least, help=each.doc)
        return Annotated[kind, option], each.default
    if each.argument:
        return Annotated[each.type, typer.Argument(help=each.doc)], each.preset
    option = typer.Option(help=each.doc, autocompletion=artifacts(each.of_table))
    return Annotated[each.type, option], each.preset


def measuring_verb(name: str, doc: str, more: Mapping[str, tuple[Any, Any]]) -> Callable[..., None]:
    """Make a verb that samples and scores problems; `more` are options of its own."""

    def run(*, as_json: bool, **given: Any) -> None:
        answer(stage_calls.measured(name, {**given, "set": given.pop("sets")}).summary, as_json)

    problems, policy = Annotated[str, _PROBLEMS], Annotated[str, _POLICY]
    take_parameters(run, {"problems": (problems, Parameter.empty), "policy": (policy, "bundled"), **more, **_SAMPLING})
    run.__name__, run.__doc__ = name, doc
    return run


def stage_verbs() -> list[Callable[..., None]]:
    """Return the verbs of our stages in the order of a round."""
    names = ("ingest", "profile", "curate", "hint", "rollout", "score", "update", "warmstart", "evaluate")
    against = {"against": (Annotated[str | None, _AGAINST], None)}
    written = {
        "profile": measuring_verb("profile", "Measure how difficult problems are for a policy.", {}),
        "evaluate": measuring_verb("evaluate", "Say how good a policy is, with intervals.", against),
    }
    return [may_wait(written.get(name) or verb(STAGES[name])) for name in names]


def installed_verb(name: str) -> TyperCommand | None:
    """Return the verb of an installed package's stage; None if there is no such stage, or it is not a verb."""
    if name not in installed_names() or not (stage := stage_spec(name)).verb:
        return None
    command = CommandInfo(name, callback=may_wait(verb(stage)))
    return cast("TyperCommand", get_command_from_info(command, pretty_exceptions_short=True, rich_markup_mode="rich"))
