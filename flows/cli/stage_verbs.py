"""The stage verbs of the command line, made from declarations."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

from typer.core import TyperCommand
from typer.main import get_command_from_info
from typer.models import CommandInfo

from gradus.components.stage import Role, Short, Stage, take_parameters
from gradus.flows.cli.options import AsJson, may_wait, shown
from gradus.flows.console.output import answer
from gradus.flows.library.stage_calls import computed
from gradus.flows.parameters import OUT, SEED, SETS, Taken, artifacts, declared
from gradus.tasks.stages.registry import installed_names, stage_spec

Sets = Annotated[list[str] | None, shown(SETS)]
Out = Annotated[str | None, shown(OUT)]
Seed = Annotated[int, shown(SEED)]
_EVERY: Mapping[str, tuple[Any, Any]] = {"set": (Sets, None), "out": (Out, None), "as_json": (AsJson, False)}
"""Options of all stages, each with its type and default."""
_OURS = ("ingest", "profile", "curate", "hint", "rollout", "score", "update", "warmstart", "evaluate")
"""Our verbs, in the order of a round."""


def verb(stage: Stage) -> Callable[..., None]:
    """Make the verb of a stage: its inputs and shorts as options, then those that all stages have."""

    def run(*, as_json: bool, **given: Any) -> None:
        answer(computed(stage, given).summary, as_json)

    known: dict[str, tuple[Any, Any]] = {each.name: _option(each) for each in stage.takes}
    take_parameters(run, {**known, **({"seed": (Seed, 0)} if stage.draws else {}), **_EVERY})
    run.__name__, run.__doc__ = stage.name, stage.doc
    return may_wait(run)


def _option(each: Role | Short) -> tuple[Any, Any]:
    if isinstance(each, Short):
        kind = each.type | None if each.default is None else each.type
        return Annotated[kind, shown(Taken(each.doc, each.flag, each.least))], each.default
    complete = None if each.argument else artifacts(each.of_table)
    return Annotated[each.type, shown(Taken(each.doc, complete=complete, argument=each.argument))], each.preset


def stage_verbs() -> list[Callable[..., None]]:
    """Return the verbs of our stages."""
    return [verb(declared(name)) for name in _OURS]


def installed_verb(name: str) -> TyperCommand | None:
    """Return the verb of an installed package's stage; None if there is no such stage, or it is not a verb."""
    if name not in installed_names() or not (stage := stage_spec(name)).verb:
        return None
    command = CommandInfo(name, callback=verb(stage))
    return cast("TyperCommand", get_command_from_info(command, pretty_exceptions_short=True, rich_markup_mode="rich"))
