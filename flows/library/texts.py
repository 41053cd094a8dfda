"""Settings of a stage as they are written: texts of the command line, or the same as values of Python."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from gradus.components.chosen import FilterConfig
from gradus.components.settings import Config
from gradus.data.errors import UsageError
from gradus.flows.recipe.assignments import Assignments, assign, pairs, toml_value
from gradus.flows.recipe.setting_faults import valid
from gradus.tasks.config.score import RewardConfig

C = TypeVar("C", bound=Config)
Component: TypeAlias = str | Mapping[str, object]
"""`pass_rate:low=0.1`, or `{"name": "pass_rate", "low": 0.1}`."""


def configured(model: type[C], sets: Assignments | None, base: Mapping[str, object] | None = None) -> C:
    """A stage's settings from its options and assignments; UsageError names the wrong key."""
    body = dict(base or {})
    assign(body, sets or [])
    return valid(model, body)


def of_part(
    prefix: str, model: type[C], sets: Assignments | None, base: Mapping[str, object]
) -> tuple[C, dict[str, object]]:
    """Return the settings of a part of a verb, from options and assignments to `PREFIX.key`; and the rest of these."""
    given = dict(pairs(sets or []))
    mine = {key.removeprefix(f"{prefix}."): value for key, value in given.items() if key.startswith(f"{prefix}.")}
    rest = {key: value for key, value in given.items() if not key.startswith(f"{prefix}.")}
    return configured(model, mine, base), rest


def mapping(maps: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """`ours=theirs` texts as a dict."""
    if isinstance(maps, Mapping):
        return dict(maps)
    found: dict[str, str] = {}
    for text in maps:
        ours, separator, theirs = text.partition("=")
        if not (ours and separator and theirs):
            raise UsageError(f"--map {text} is not ours=theirs", hint="write --map question=prompt")
        if ours in found:
            raise UsageError(f"--map {text}: {ours} is {found[ours]} already", hint="write one --map for each field")
        found[ours] = theirs
    return found


def parse_component(component: Component, option: str) -> dict[str, object]:
    """A component written as `pass_rate:low=0.1,high=0.9` or `path/to/file.py:function:low=0.1`, or as a mapping."""
    if not isinstance(component, str):
        return dict(component)
    file, is_file, rest = component.partition(".py:")
    name, _, arguments = rest.partition(":") if is_file else component.partition(":")
    settings: dict[str, object] = {"name": f"{file}.py:{name}" if is_file else name}
    for pair in [p for p in arguments.split(",") if p]:
        key, separator, value = pair.partition("=")
        if not separator:
            raise UsageError(f"{option} {component}: {pair!r} is not k=v", hint=f"write {option} NAME:low=0.1,high=0.9")
        settings[key.strip()] = toml_value(value.strip())
    return settings


def parse_filter(component: Component) -> FilterConfig:
    """A filter written as `pass_rate:low=0.1,high=0.9`, or as a mapping."""
    return valid(FilterConfig, parse_component(component, "--filter"), f"--filter {component}")


def parse_reward(reward: Component) -> RewardConfig:
    """A reward written as `math`, `format=0.2` or `path/to/file.py:function=0.5`, or as a mapping."""
    if not isinstance(reward, str):
        return valid(RewardConfig, reward, f"reward {reward.get('name', '')}")
    name, separator, weight = reward.rpartition("=")
    if not separator:
        name, weight = reward, "1.0"
    try:
        value = float(weight)
    except ValueError:
        raise UsageError(f"--reward {reward}: {weight!r} is not a weight", hint="write --reward math=1.0") from None
    return valid(RewardConfig, {"name": name, "weight": value}, f"--reward {reward}")


READ: Mapping[str, Callable[[Any, str], object]] = {
    "": lambda value, _: value,
    "component": parse_component,
    "filters": lambda value, _: [parse_filter(each) for each in value],
    "rewards": lambda value, _: [parse_reward(each).model_dump() for each in value],
    "names": lambda value, _: mapping(value),
}
"""Functions that read the value of a short, by `Short.read`; errors name its option."""
