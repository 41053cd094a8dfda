"""Methods as overlays: recipes/methods/NAME.toml holds the source of a method and the settings that it changes.

    paper = "arXiv 2503.20783"
    trust = "confirmed"
    [update]
    advantage = "dr_grpo"

overlaid(body, find_overlays(["dr_grpo"]))      # the body of a recipe with these settings

A number may follow one of the recipe: `lr = "=10 * update.lr"`, `length_tokens = "=curate.sample.max_tokens"`.

Installed packages bring methods by an entry point of the group `gradus.methods` that names a package of .toml files:

    [project.entry-points."gradus.methods"]
    mine = "my_package.methods"
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, cast, get_args

from gradus.components.registry import entry_points, located
from gradus.data.errors import UsageError, shortened
from gradus.data.nearest import did_you_mean
from gradus.data.package import package_file

Trust = Literal["confirmed", "known", "abstract", "guess"]
"""Source of a formula: the authors' code or paper read; common knowledge; an abstract alone; our reconstruction."""

METHODS = package_file("recipes", "methods")
TASKS = package_file("recipes", "tasks")
_TEXTS = ("what", "paper", "trust", "deviates")
_RUNS_OWN = ("name", "seed", "files", "overrides", "guards")
"""Settings of a recipe that a method cannot have."""

_REFERENCE = re.compile(r"=(?:([0-9.e+-]+) \* )?([a-z_]+(?:\.[a-z_0-9]+)*)")
T = TypeVar("T")


class Method(TypedDict):
    """Facts about a method: its source, and the settings that it changes."""

    what: str
    paper: str
    trust: Trust
    deviates: str
    """Differences to the paper; empty if there are none."""
    settings: dict[str, object]
    """Its settings, by dotted key; a table that names a component is one value."""
    where: str
    """Its file."""


class Overlay(NamedTuple):
    """A method that can be laid over a recipe."""

    name: str
    body: Mapping[str, object]
    facts: Method

    @property
    def is_task(self) -> bool:
        """A bundled task's: methods change its settings like those of a recipe."""
        return Path(self.facts["where"]).parent == TASKS


def read_toml(path: Path) -> dict[str, object]:
    """Return the content of a TOML file; raise UsageError if it is not valid."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not valid UTF-8 (byte {error.start})", hint="save it as UTF-8") from None
    except RecursionError:
        raise UsageError(f"{path} is not valid TOML: it is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from None


def overlay_files() -> dict[str, Path]:
    """Return the files of all methods by name: ours first, then those of installed packages."""
    folders = [METHODS]
    for point in entry_points("gradus.methods"):
        spec = located(point.value)
        folders += [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    found: dict[str, Path] = {}
    for file in (file for folder in folders for file in sorted(folder.glob("*.toml"))):
        found.setdefault(file.stem, file)
    return found


def task_files() -> dict[str, Path]:
    """Return the files of all bundled tasks by name: overlays with problems and their reward."""
    return {file.stem: file for file in sorted(TASKS.glob("*.toml"))}


def task_overlay(name: str) -> str:
    """Return the path of a bundled task's overlay; raise UsageError if there is none."""
    known = task_files()
    if name not in known:
        raise UsageError(f"there is no task {shortened(name)}", hint=did_you_mean(name, known))
    return str(known[name])


def find_overlays(names: Sequence[str]) -> list[Overlay]:
    """Return methods by name or path, `a+b` as two; raise UsageError for one that does not exist or cannot be one."""
    files = overlay_files()
    return [_read(name, files) for text in names for name in ([text] if Path(text).is_file() else text.split("+"))]


def overlaid(body: Mapping[str, object], overlays: Sequence[Overlay]) -> dict[str, object]:
    """Return a recipe's body with the settings of methods; raise UsageError if two set a key differently.

    The recipe's name gains those of the methods, so that its run differs from the recipe's own.
    """
    for one, other in combinations(overlays, 2):
        _refuse_conflict(one, other)
    merged = reduce(_merged, (each.body for each in overlays), body)
    name = "-".join([str(body.get("name", "")), *(each.name for each in overlays)])
    return {**merged, "name": name} if overlays else dict(body)


def with_references(value: T, own: Mapping[str, object]) -> T:
    """Return a body with "=update.lr" and "=10 * update.lr" as values of `own`; UsageError if that does not set one."""
    if isinstance(value, dict):
        return cast("T", {key: with_references(each, own) for key, each in cast("dict[str, object]", value).items()})
    if isinstance(value, list):
        return cast("T", [with_references(each, own) for each in cast("list[object]", value)])
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    factor, key = match.groups()
    found: Any = own
    for part in key.split("."):
        found = cast("Mapping[str, object]", found).get(part) if isinstance(found, Mapping) else None
    if not isinstance(found, int | float):
        raise UsageError(f"a method reads {key}, and the recipe does not set it", hint=f"--set {key}=...")
    product = found * float(factor or 1)
    return cast("T", int(product) if isinstance(found, int) and product.is_integer() else product)


def _read(name: str, files: Mapping[str, Path]) -> Overlay:
    path = Path(name) if name.endswith(".toml") else files.get(name)
    if path is None or not path.is_file():
        listed = f"give a .toml file or one of: {', '.join(files)}"
        raise UsageError(f"there is no method {shortened(name)}", hint=did_you_mean(name, files, listed))
    body = read_toml(path)
    texts = {key: body.pop(key, "") for key in _TEXTS}
    if own := [key for key in _RUNS_OWN if key in body]:
        hint = "leave it out; a method is laid over a recipe: gradus train demo --method FILE.toml"
        raise UsageError(f"{path} sets {own[0]}, which belongs to a run, not to a method", hint=hint)
    for key, text in texts.items():
        if not isinstance(text, str):
            raise UsageError(f"{path}: {key} must be text")
    trust = texts["trust"] or "guess"
    if trust not in get_args(Trust):
        raise UsageError(f"{path}: there is no trust {trust!r}", hint=f"it is one of {', '.join(get_args(Trust))}")
    facts = {**texts, "trust": trust, "settings": dict(_leaves(body, "")), "where": str(path)}
    return Overlay(path.stem, body, cast("Method", facts))


def _refuse_conflict(one: Overlay, other: Overlay) -> None:
    for key, value in one.facts["settings"].items():
        for their, given in other.facts["settings"].items():
            inside = their.startswith(f"{key}.") or key.startswith(f"{their}.")
            if inside or (key == their and value != given):
                message = f"the methods {one.name} and {other.name} set {key} differently"
                raise UsageError(message, hint="leave one of them out, or write your own method that sets it")


def _leaves(body: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for key, value in body.items():
        if isinstance(value, dict) and not _is_component(value):
            yield from _leaves(cast("dict[str, object]", value), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _merged(body: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return a table with changes; a table that names a component replaces the whole component."""
    result = dict(body)
    for key, value in changes.items():
        before = body.get(key)
        if isinstance(value, dict) and not _is_component(value) and isinstance(before, dict):
            result[key] = _merged(cast("dict[str, object]", before), cast("dict[str, object]", value))
        else:
            result[key] = value
    return result


def _is_component(table: Mapping[str, object]) -> bool:
    return "name" in table or "schedule" in table
