"""Components as settings name them: a name and, beside it, the component's own settings.

    update.advantage = "grpo"                              # its settings are the defaults
    update.advantage = { name = "grpo", std_eps = 1e-6 }
    curate.filters = [{ name = "mine.py:short", max_words = 30 }]

They are checked against the component's signature when they are read (gradus.components), and the defaults filled in,
so that they are stored and part of the identity. A user's file that cannot be read is left to the checks before a run
(gradus.tasks.preflight): stored settings must stay readable after the file has gone.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, Unpack

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from gradus.components import Kind
from gradus.components.description import Component, DescriptionError
from gradus.components.recorded import Until
from gradus.components.registry import UnknownComponentError, components, find, is_users, users_file
from gradus.components.settings import FILLED_IN, INCIDENTAL, MAX_ROUNDS, MAX_TRIES, Config, empty, optional, unset
from gradus.components.templates import Template

HINT_TEXTS = "hint.texts"
"""The column of a measure of rollouts with the hints of each row's problem."""
_DOTTED = re.compile(r"'(?:[^']|'')*'|\b([A-Za-z_]\w*\.[A-Za-z_]\w*)")
"""A text of SQL, or a name with a dot."""


def dotted(condition: str) -> tuple[str, ...]:
    """Return the names with a dot that a condition in SQL has outside of its texts, each once.

    >>> dotted("problem.level >= 3.5 and irt.rate < 0.5 and source <> 'a.b'")
    ('problem.level', 'irt.rate')
    """
    return tuple(dict.fromkeys(filter(None, _DOTTED.findall(condition))))


class Chosen(Config):
    """A component by name, with its settings."""

    model_config = ConfigDict(extra="allow")

    kind: ClassVar[Kind]
    default: ClassVar[str]
    """The name, if none is given."""

    name: str
    """A registered name, or path/to/file.py:function."""
    source_sha256: str = Field(default="", exclude_if=empty)
    """Digest of a user's file, filled in when the stage runs, so that a changed component is a changed identity."""
    modules: dict[str, str] = Field(default_factory=dict, exclude_if=empty)
    """Digest of each of the user's own modules that the file leads to, by name; filled in likewise."""
    libraries: dict[str, str] = Field(default_factory=dict, exclude_if=empty)
    """Version of each installed distribution that those import, by name; filled in likewise."""

    def __init_subclass__(cls, *, kind: Kind, default: str = "", **config: Unpack[ConfigDict]) -> None:
        super().__init_subclass__(**config)
        cls.kind, cls.default = kind, default

    @model_validator(mode="before")
    @classmethod
    def _with_settings(cls, given: object) -> object:
        written = {"name": given} if isinstance(given, str) else given
        if not isinstance(written, Mapping):
            return written
        body: dict[str, object] = {"name": cls.default, **written} if cls.default else dict(written)
        name = body.get("name")
        if not isinstance(name, str):
            return body
        if is_users(name):
            path, function = users_file(name)
            body["name"] = name = f"{path}:{function}"
        own = {key: body.pop(key) for key in [*body] if key not in cls.model_fields}
        return {**body, **cls._checked(name, own)}

    @classmethod
    def _checked(cls, name: str, own: Mapping[str, object]) -> Mapping[str, object]:
        """The component's settings with its defaults filled in."""
        try:
            component = find(cls.kind, name)
        except DescriptionError:
            return own
        except UnknownComponentError:
            raise cls._refusal("no_component", ("name",), name, list(components(cls.kind))) from None
        known = list(component.settings.model_fields)
        for key in own:
            if key not in known:
                ours = [each for each in cls.model_fields if each not in ("name", *FILLED_IN)]
                raise cls._refusal("no_setting", (key,), name, [*known, *ours])
        return component.settings(**own).model_dump(mode="json")

    @classmethod
    def _refusal(cls, error: str, where: tuple[str, ...], name: str, known: list[str]) -> ValidationError:
        what = "there is no {kind} '{name}'" if error == "no_component" else "{kind} {name} has no such setting"
        problem = PydanticCustomError(error, what, {"kind": cls.kind, "name": name, "known": known})  # type: ignore[arg-type]
        fault = InitErrorDetails(type=problem, loc=where, input=name)
        return ValidationError.from_exception_data(cls.__name__, [fault])

    @property
    def settings(self) -> dict[str, Any]:
        """The component's own settings."""
        return dict(self.model_extra or {})

    @property
    def label(self) -> str:
        """The name without the folder of a user's file."""
        return self.name.rpartition("/")[2]

    @property
    def short(self) -> str:
        """The name without the file of a user's function."""
        return self.name.rpartition(":")[2]

    @classmethod
    def usual(cls) -> Self:
        """The default component with its default settings."""
        return cls.model_validate(cls.default)

    @property
    def is_users(self) -> bool:
        """Return whether it is a function of a user's file."""
        return is_users(self.name)

    @property
    def is_ours(self) -> bool:
        """Return whether it is one of Gradus's own."""
        return not self.is_users and self.component.module.startswith("gradus.")

    @cached_property
    def component(self) -> Component:
        """Return the declaration in the source; see gradus.components.registry.find for what it raises."""
        return find(self.kind, self.name)

    @property
    def needs(self) -> tuple[str, ...] | None:
        """The columns that it declares to read, and those that its settings name; None if none is known."""
        declared = self.declared.needs
        return declared if declared is None else tuple(dict.fromkeys((*declared, *self._named_columns)))

    def reads(self, column: str) -> bool:
        """Return whether a column is one of these."""
        return column in (self.needs or ())

    @property
    def _named_columns(self) -> Iterator[str]:
        """The column that its setting `column` names, those of names in a template's braces; kinds may have others."""
        if isinstance(named := self.settings.get("column"), str):
            yield named
        for name, field in self.component.settings.model_fields.items():
            for rule in field.metadata:
                if isinstance(rule, Template):
                    yield from rule.columns(self.settings.get(name, ""))

    @property
    def by(self) -> tuple[str, ...]:
        """The key columns of the rows that a tracker or measure makes; none if it cannot be found."""
        return self.declared.by

    @property
    def keeps(self) -> tuple[str, ...]:
        """The columns that a tracker or measure makes, as others read them: NAME.COLUMN; none if it cannot be found."""
        return tuple(f"{self.short}.{column}" for column in self.declared.columns)

    @property
    def declared(self) -> Component:
        """The declaration; one that says nothing if it cannot be found."""
        try:
            return self.component
        except ValueError:
            return Component(self.kind, name=self.name, file=Path(), function=self.short, by=())

    def identified(self) -> dict[str, Any]:
        """The settings without the folder of a user's file and without those on which no result depends."""
        body = super().identified()
        return {**{k: v for k, v in body.items() if k not in self.declared.incidental}, "name": self.label}


def chosen_in(config: Config) -> Iterator[Chosen]:
    """Every component that settings name, in nested settings and lists of them too."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        for part in value if isinstance(value, tuple) else value.values() if isinstance(value, dict) else (value,):
            if isinstance(part, Chosen):
                yield part
            elif isinstance(part, Config):
                yield from chosen_in(part)


def none_if_empty(value: object) -> object:
    """Return None for the words that name no component."""
    return None if value in ("", "none") else value


class FilterConfig(Chosen, kind="filter"):
    """A filter with its settings."""

    @property
    def _named_columns(self) -> Iterator[str]:
        yield from super()._named_columns
        if isinstance(condition := self.settings.get("condition"), str):
            yield from dotted(condition)


class RankingConfig(Chosen, kind="ranking"):
    """A ranking with its settings."""


class SamplerConfig(Chosen, kind="sampler", default="all"):
    """A sampler with its settings."""


class HintStrategyConfig(Chosen, kind="hint", default="prefix"):
    """A hint strategy with its settings."""


class WaveConfig(Chosen, kind="wave"):
    """A wave with its settings, and when a round asks it."""

    times: int = Field(default=1, ge=1, le=MAX_TRIES, json_schema_extra=INCIDENTAL)
    """Calls of a round at most: it is asked again each time that its rollouts are back and scored."""
    from_round: int = Field(default=1, ge=1, le=MAX_ROUNDS, json_schema_extra=INCIDENTAL)
    """The first round that has it."""
    until: Until | None = Field(default=None, exclude_if=unset, json_schema_extra=INCIDENTAL)
    """The metric that ends it: no round after the first that reaches its min or max has it; none for all rounds."""
    then: Literal["learn", "fail"] = Field(default="learn", json_schema_extra=INCIDENTAL)
    """If it asks for more after its last call: learn from the rows that are there, or fail the run."""

    traces: str = Field(default="", exclude_if=empty, json_schema_extra=INCIDENTAL)
    """A JSONL or Parquet file of texts for a wave that plans them, several a problem: problem (id or question), text,
    and source, which is kept."""
    best: str = Field(default="", exclude_if=empty)
    """A column, NAME.COLUMN, of a measure of these texts: of several of a problem the wave has the one that is highest
    in it; empty for all."""

    @property
    def _named_columns(self) -> Iterator[str]:
        yield from super()._named_columns
        yield from filter(None, (self.best,))


class TrackerConfig(Chosen, kind="tracker"):
    """A tracker with its settings, and the rows that it begins with."""

    start: str = Field(default="", exclude_if=empty, json_schema_extra=INCIDENTAL)
    """Rows that it begins with: an artifact of the same tracker, or a file with its key columns and its own."""


class MeasureConfig(Chosen, kind="measure"):
    """A measure with its settings, and the model that it asks."""

    role: str = Field(default="policy", min_length=1, json_schema_extra=INCIDENTAL)
    """The model: policy, as of each round; start, the starting policy; teacher; or a role of the recipe."""

    @property
    def of_problems(self) -> bool:
        """Return whether it measures problems."""
        return self.by == ("problem_id",)

    @property
    def of_traces(self) -> bool:
        """Return whether it measures the texts of files that waves have; if neither, it measures rollouts."""
        return self.by == ("trace_id",)


class ShapeConfig(Chosen, kind="shape"):
    """A shape with its settings: a function that decides what of a round is learned from."""


class AdvantageConfig(Chosen, kind="advantage", default="grpo"):
    """An advantage with its settings."""


class LossConfig(Chosen, kind="loss", default="clip"):
    """A policy loss with its settings."""


class AggregationConfig(Chosen, kind="aggregation", default="token_mean"):
    """An aggregation with its settings."""


class WeightConfig(Chosen, kind="weight"):
    """Token weights with their settings: a factor of the loss of each token."""


class CorrectionConfig(Chosen, kind="correction"):
    """A correction with its settings: importance weights of rows that the policy itself did not sample."""


class ScheduleConfig(Chosen, kind="schedule"):
    """A schedule with its settings: the number of a setting in each round."""

    from_round: int = optional(1, ge=1, le=MAX_ROUNDS)
    """The round that it counts as its first; the start of a phase for a schedule of a phase."""

    @classmethod
    def _checked(cls, name: str, own: Mapping[str, object]) -> Mapping[str, object]:
        """Its settings; `optimizer_steps` only if set, so that recipes of earlier versions keep their runs' names."""
        return {key: value for key, value in super()._checked(name, own).items() if key != "optimizer_steps" or value}

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that it reads: those that it declares, and the one that its setting `metric` names."""
        named = self.settings.get("metric")
        return (*(self.needs or ()), *([named] if isinstance(named, str) else []))


class OptimizerConfig(Chosen, kind="optimizer", default="adamw"):
    """An optimiser with its settings."""
