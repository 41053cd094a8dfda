"""Declare a stage: one value, from which its verb, its flow, its section of a recipe and its place in the lake follow.

    ECHO = Stage(
        "echo", "Repeat the rollouts.", version=1, makes="echoes", settings=EchoConfig,
        takes=(Role("rollouts", "rollouts: a file or an artifact"),), when="round", run="my_package.work:echo",
    )

A package installs it as an entry point of the group `gradus.stages`. The file of a declaration is light: what computes
(`run`), checks (`check`) or describes a table (`table`) is named as module:function, and imported when it is needed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, Signature
from typing import Any, Literal, TypeAlias

from gradus.components.chosen import chosen_in
from gradus.components.settings import Config

Worker: TypeAlias = Literal["", "policy", "engine", "score", "user"]
"""The kind of warm child process that a stage runs in; empty for the process of the flow."""
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Role:
    """An input of a stage: a table, or a policy."""

    name: str
    doc: str
    table: str = ""
    """The table of its artifacts, if it is not called as the role is."""
    many: bool = False
    """True if it takes several artifacts."""
    default: str | None = ""
    """The input where none is named; empty if one must be."""
    used: str = ""
    """The property of the settings that says whether the stage reads it; empty if it always does."""
    argument: bool = False
    """True if the verb takes it by its place."""

    @property
    def of_table(self) -> str:
        """The table of its artifacts."""
        return self.table or self.name

    @property
    def preset(self) -> Any:
        """The default of the parameter that names it."""
        return Parameter.empty if self.default == "" else self.default

    @property
    def type(self) -> Any:
        """The type of the parameter that names it."""
        one = list[str] if self.many else str
        return one if self.default is not None else one | None


@dataclass(frozen=True)
class Short:
    """An option of the verb that stands for a setting: `--filter NAME` for `--set filters=[...]`."""

    name: str
    doc: str
    flag: str = ""
    type: Any = str
    default: Any = None
    read: Literal["", "component", "filters", "rewards", "names"] = ""
    """Form of its text; empty as it stands."""
    least: float | None = None
    """The smallest value of a number."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One stage: its inputs, its table, its settings, and the place of its function."""

    name: str
    doc: str
    """One sentence."""
    version: int
    """Raised when the result changes for the same inputs and settings: earlier artifacts are then stale."""
    makes: str
    """The table of its artifact."""
    settings: type[Config]
    run: str
    """Its function as module:function, called with a StageContext and its settings."""
    takes: tuple[Role | Short, ...] = ()
    """Its inputs and the shorts of its settings, in the order of the verb's options."""
    check: str = ""
    """A function of (settings, inputs by role) as module:function, which refuses them before anything starts."""
    gate: str = ""
    """A function of (report, settings) as module:function: the first limit that a result breaches, or empty. Limits are
    no part of the identity (gradus.components.settings.LIMIT), so it is asked whenever a result is used."""
    reads: Callable[[Any], Mapping[str, tuple[str, ...]]] = lambda _: {}
    """The only columns that it reads of an input with these settings, by role: a change of others does not change its
    result, and the identity goes by their values. Of a role that is not named every byte counts."""
    incidental: tuple[str, ...] = ()
    """Facts of a call on which its result does not depend, and which its identity leaves out."""
    draws: bool = True
    """True if the result depends on a seed, which is then part of its identity."""
    worker: Worker = ""
    other_worker: Callable[[Any], Worker] | None = None
    """The process for settings that need another one; empty for the usual one."""
    verb: bool = True
    """True if it is a verb and a flow of its own."""
    when: Literal["", "start", "round"] = ""
    """Moment of a stage in a training with its section: before the first round, or after every round's update."""
    table: str = ""
    """The lake's table that it makes, a gradus.data.lake.schema.Table as module:name, if the package brings its own."""
    distribution: str = ""
    """The installed package that declares it, filled in when it is found; its version is part of the identity."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Its inputs."""
        return tuple(each for each in self.takes if isinstance(each, Role))

    @property
    def shorts(self) -> tuple[Short, ...]:
        """The options that stand for settings."""
        return tuple(each for each in self.takes if isinstance(each, Short))

    def worker_for(self, settings: Config) -> Worker:
        """Return the process for these settings; another than the flow's if code takes part that is not ours."""
        kind = (self.other_worker(settings) if self.other_worker else "") or self.worker
        theirs = self.distribution or any(not each.is_ours for each in chosen_in(settings))
        return kind or ("user" if theirs else "")

    def function(self) -> Callable[..., Any]:
        """Import the stage's module and return its function."""
        return named_object(self.run)

    def refuse(self, settings: Config, inputs: Mapping[str, Sequence[str]]) -> None:
        """Raise what its own check raises for settings and inputs that it would certainly refuse."""
        if self.check:
            named_object(self.check)(settings, inputs)

    def breach(self, report: Mapping[str, Any], settings: Config) -> str:
        """Return the first limit that a result breaches, as a sentence; empty if there is none."""
        return named_object(self.gate)(report, settings) if self.gate else ""

    def used(self, settings: Config, role: str) -> bool:
        """Return whether the stage reads an input with these settings."""
        found = next((each for each in self.roles if each.name == role), None)
        return found is not None and (not found.used or bool(getattr(settings, found.used)))


def take_parameters(function: Callable[..., Any], known: Mapping[str, tuple[Any, Any]]) -> None:
    """Have a function that takes any keywords declare these, each with its type and default."""
    function.__annotations__ = {name: kind for name, (kind, _) in known.items()}
    required_first = sorted(known.items(), key=lambda each: each[1][1] is not Parameter.empty)
    taken = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=preset)
        for name, (kind, preset) in required_first
    ]
    function.__signature__ = Signature(taken)  # pyright: ignore[reportFunctionMemberAccess]


def named_object(name: str) -> Any:
    """Import what `module:name` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
