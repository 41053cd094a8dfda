"""Methods, components and settings in a terminal: a line for each, or all about one of them."""

from collections.abc import Mapping
from typing import Any, cast

from rich.table import Table
from rich.text import Text

from gradus.flows.console.output import View, fields, line, safe
from gradus.flows.recipe.method_list import METHOD, Facts, named_by
from gradus.flows.recipe.overlays import Method, overlay_files
from gradus.tasks.inspect.catalogue import REQUIRED, Component, Setting

_COLUMNS = ("name", "kind", "paper", "trust", "what", "test")


def render_methods(found: Facts, word: str = "") -> None:
    """All about what is called `word`; otherwise a line for each method and component, by stage."""
    entries = [(kind, name, facts) for kind, named in found.items() if kind != "stage" for name, facts in named.items()]
    if all(name == word for _, name, _ in entries):
        for kind, name, facts in entries:
            _about(kind, name, facts)
        return
    console, width = View(), {key: max(len(str(row[key])) for row in map(_row, entries)) for key in _COLUMNS}
    for stage in dict.fromkeys(_stage(facts) for _, _, facts in entries):
        console.print(Text(stage, "bold"))
        for row in (_row(entry) for entry in entries if _stage(entry[2]) == stage):
            text = safe("  ".join(f"{row[key]:<{width[key]}}" for key in _COLUMNS).rstrip())
            console.print(text, no_wrap=True, overflow="ellipsis" if console.is_terminal else "ignore", crop=False)
    line("all about one: `gradus methods NAME`; those of a kind or paper: --kind, --paper; settings: `gradus settings`")


def render_settings(found: Mapping[str, Component]) -> None:
    """The settings of stages, with type, default and doc."""
    for name, stage in found.items():
        line(f"{name}: {stage['what']}")
        _settings(stage["settings"])
        line("")


def _row(entry: tuple[str, str, Component | Method]) -> dict[str, str]:
    """Return the cells of a line; a terminal shows as much of it as it has columns."""
    kind, name, facts = entry
    trust, file = str(facts.get("trust", "")), str(facts.get("test", "")).partition("::")[0]
    return dict(zip(_COLUMNS, (name, kind, facts["paper"], trust, facts["what"], file), strict=True))


def _stage(facts: Component | Method) -> str:
    keys = [facts["setting"]] if "setting" in facts else list(facts["settings"])
    return "update" if any(key.startswith("update.") for key in keys) else keys[0].partition(".")[0]


def _about(kind: str, name: str, facts: Component | Method) -> None:
    line(f"{kind} {name}")
    if kind == METHOD:
        method = cast("Method", facts)
        line(method["what"])
        shown: dict[str, object] = {key: method[key] for key in ("paper", "trust", "deviates") if method[key]}
        parts = {"components": ", ".join(f"{kind} {each}" for kind, each in named_by(method))}
        fields({**shown, **{key: _toml(value) for key, value in method["settings"].items()}, **parts})
        tried = {"try": f"gradus train demo --method {name} --dry-run"}
        fields({"file": method["where"], **tried, "compare": f"gradus compare demo --method none --method {name}"})
    else:
        component = cast("Component", facts)
        line(component["doc"])
        _settings(component["settings"])
        fields({"file": component["where"], "test": component["test"] or "-", "try": _command(name, component)})
    line("")


def _command(name: str, component: Component) -> str:
    """The command that tries a component: by the method of its name, or with a place for settings without a default."""
    if name in overlay_files():
        return f"gradus train demo --method {name} --dry-run"
    required = [key for key, setting in component["settings"].items() if setting["default"] == REQUIRED]
    settings = "".join(f", {key} = ..." for key in required)
    value = f'{{name = "{name}"{settings}}}' if required else f'"{name}"'
    key = component["setting"]
    value = f"[{value}]" if key.endswith(".0") else value
    return f"gradus train demo --set '{key.removesuffix('.0')}={value}' --dry-run"


def _settings(settings: Mapping[str, Setting]) -> None:
    view = Table.grid(padding=(0, 2, 0, 0))
    view.add_column(overflow="fold", max_width=30)
    view.add_column(overflow="fold")
    for key, setting in settings.items():
        written = setting["default"] if setting["default"] == REQUIRED else f"default {setting['default']}"
        view.add_row(Text(f"  {key}"), safe(setting["what"]).append(f" ({setting['type']}; {written})", "dim"))
    if settings:
        View().print(view)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        inner = cast("dict[str, object]", value).items()
        return f"{{ {', '.join(f'{key} = {_toml(each)}' for key, each in inner)} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, cast('list[object]', value)))}]"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')
