"""Parameters of calls, declared once: verbs of the command line and forms of Prefect are made from them.

    def prune(run: Annotated[Run | str, KNOWN_RUN], *, keep: Annotated[str, Taken("checkpoints that stay")] = KEEP): ...

Completion at the Tab key lists folders alone.
"""

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, get_args, get_origin

from gradus.components.stage import CHECKPOINTS, Role, Short, Stage, take_parameters
from gradus.data.errors import GradusError, UsageError
from gradus.data.lake.names import artifacts_of
from gradus.flows.recipe.assignments import Assignments
from gradus.flows.recipe.overlays import overlay_files, task_files
from gradus.flows.recipe.reading import RECIPES
from gradus.tasks.config.curation import DIFFICULTY, POLICY, PROBLEMS
from gradus.tasks.config.score import EVALUATE
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.history import run_names
from gradus.tasks.stages import registry

Complete = Callable[[str], list[str]]
Input: TypeAlias = str | os.PathLike[str]
"""A file, a folder, or an artifact by its name."""

_SAMPLED = (
    Short("samples", "completions for each problem", "-n --samples", int, 8, least=1),
    Short("temperature", "sampling temperature; 0 is greedy", type=float, default=1.0, least=0.0),
    Short("max_tokens", "limit of completion tokens", type=int, default=96, least=1),
    Short("engine", "which engine samples: transformers, vllm or openai", default="transformers"),
    Short("device", "where the engine transformers computes: auto, cpu or cuda", default="auto"),
    Short("rewards", "NAME[=WEIGHT]; repeatable", "--reward", list[str], read="rewards"),
)
_AGAINST = Role("against", "another policy on the same problems and seeds", CHECKPOINTS, default=None)
MEASURING = {
    "profile": replace(
        DIFFICULTY,
        name="profile",
        doc="Measure how difficult problems are for a policy; `import --from table` does so for your own rollouts.",
        takes=(PROBLEMS, POLICY, *_SAMPLED),
        draws=True,
        verb=True,
    ),
    "evaluate": replace(EVALUATE, takes=(PROBLEMS, POLICY, _AGAINST, *_SAMPLED), draws=True, verb=True),
}
"""Verbs that sample and score problems before their stage."""


def runs(incomplete: str) -> list[str]:
    """Names of runs."""
    home = _home()
    return _beginning(incomplete, run_names(home.runs)) if home else []


def recipes(incomplete: str) -> list[str]:
    """Bundled recipes and the files beside them that one could be."""
    files = [str(path) for path in Path().glob("*.toml")]
    return _beginning(incomplete, [*(path.stem for path in RECIPES.glob("*.toml")), *files])


def tasks(incomplete: str) -> list[str]:
    """Bundled tasks."""
    return _beginning(incomplete, list(task_files()))


def methods(incomplete: str) -> list[str]:
    """Methods that can be laid over a recipe; of `a+b` the last."""
    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in _beginning(last, list(overlay_files()))]


def recipes_and_runs(incomplete: str) -> list[str]:
    """Recipes, then names of runs."""
    return [*recipes(incomplete), *runs(incomplete)]


def stages(incomplete: str) -> list[str]:
    """Names of stages."""
    return _beginning(incomplete, list(registry.stages()))


def artifacts(table: str) -> Complete:
    """Return artifacts of a table; nothing if the word can be none of them, so that the shell offers files."""

    def complete(incomplete: str) -> list[str]:
        home = _home()
        return _beginning(incomplete, list(map(str, artifacts_of(home.lake, table)))) if home and incomplete else []

    return complete


def _home() -> Home | None:
    """Return the home; None if the environment names one that cannot be used."""
    try:
        return Home.from_environment()
    except (GradusError, OSError):
        return None


def _beginning(incomplete: str, names: list[str]) -> list[str]:
    return sorted(name for name in names if name.startswith(incomplete))


class Named(Protocol):
    """A run."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


def named(value: Input | Named) -> str:
    """Return an input, or the name of a run, as text."""
    return str(os.fspath(value)) if isinstance(value, str | os.PathLike) else value.name


def check_finite(option: str, value: float | None) -> None:
    """Raise UsageError for an option whose number is infinite, or none."""
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{option} {value} is not a finite number", hint="give one such as 0.5")


class Taken(NamedTuple):
    """Description of a parameter, and the form in which a command line takes it."""

    doc: str
    flag: str = ""
    """Its options; empty for that of its name."""
    least: float | None = None
    most: float | None = None
    complete: Complete | None = None
    argument: bool = False
    """True if the verb takes it by its place."""

    def __repr__(self) -> str:
        """Return the description alone, as `help()` shows it."""
        return repr(self.doc)


KNOWN_RUN = Taken("a run, or the beginning of its name (`gradus runs`)", complete=runs, argument=True)
SEED = Taken("every other seed derives from it", least=-(2**63), most=2**63 - 1)
OUT = Taken("also write the result here (.parquet, .jsonl or a folder)")
SETS = Taken("a setting of the stage, key=value; repeatable", "--set")
Sets = Annotated[Assignments | None, SETS]


def taken_by(call: Callable[..., Any]) -> Iterator[tuple[str, Any, Any, Taken]]:
    """Yield name, type, default and description of each described parameter of a call, as plain text or numbers."""
    for name, parameter in signature(call).parameters.items():
        if get_origin(parameter.annotation) is Annotated:
            kind, taken = get_args(parameter.annotation)
            default = None if parameter.default == () else parameter.default
            yield name, _plain(kind, default), default, taken


def taking_those_of(
    call: Callable[..., Any], function: Callable[..., Any], typed: Callable[[str, Any, Taken], Any], *left_out: str
) -> Callable[..., Any]:
    """Return a function with the parameters of a call, then its own; those that are None are not passed to it.

    `typed` returns the annotation of a parameter from its name, type and description.
    """

    @functools.wraps(function)
    def run(**given: Any) -> Any:
        return function(**{name: value for name, value in given.items() if value is not None})

    known = {name: (typed(name, kind, taken), default) for name, kind, default, taken in taken_by(call)}
    taken_over = {name: each for name, each in known.items() if name not in left_out}
    take_parameters(run, {**taken_over, **own_parameters(function)})
    return run


def own_parameters(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Return type and default of each parameter that a function has by name."""
    named = (each for each in signature(function).parameters.values() if each.kind is not Parameter.VAR_KEYWORD)
    return {each.name: (each.annotation, each.default) for each in named}


def describe(function: Callable[..., Any], doc: str, texts: Mapping[str, str]) -> None:
    """Set the docstring of a function that is made: a text, and a line for each parameter."""
    lines = (
        f"    {name}: {text if '=' in text.split()[0] else text[0].upper() + text[1:]}." for name, text in texts.items()
    )
    function.__doc__ = "\n".join([cleandoc(doc), "", "Args:", *lines])


def _plain(kind: Any, default: object) -> Any:
    """Return the type of a parameter as a command line or a form has it: paths and runs are texts."""
    kinds = get_args(kind) or (kind,)
    if any(get_origin(each) in (Sequence, Mapping) for each in (kind, *kinds)):
        return list[str] if default is Parameter.empty else list[str] | None
    if {bool, int, float} & {*kinds}:
        return kind
    return str | None if type(None) in kinds else str


def declared(name: str) -> Stage:
    """Return the stage whose inputs and shorts a verb takes; raise UsageError if no verb is called so."""
    stage = MEASURING.get(name) or registry.stage_spec(name)
    if not stage.verb:
        raise UsageError(f"the stage {name} runs in trainings alone")
    return stage
