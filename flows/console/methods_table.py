"""The list of `gradus methods`: one entry for each component, its settings below it."""

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from gradus.flows.console.output import View, safe
from gradus.tasks.inspect.catalogue import Component, Setting

NAME_WIDTH = 30


def render_methods(result: Mapping[str, Mapping[str, Component]]) -> None:
    """A list for each kind: the name of a component and what it does, then its settings with type and default."""
    console = View()
    for kind, components in result.items():
        view = Table.grid(padding=(0, 2, 0, 0))
        view.add_column(overflow="fold", max_width=NAME_WIDTH)
        view.add_column(overflow="fold")
        for name, component in components.items():
            what = safe(component["what"])
            if component["paper"]:
                what.append(f" ({component['paper']})", "dim")
            view.add_row(Text(f"{kind} {name}", "bold"), what)
            for key, setting in component["settings"].items():
                view.add_row(Text(f"  {key}"), _setting(setting))
        console.print(view)
        console.print()


def _setting(setting: Setting) -> Text:
    written = setting["default"] if setting["default"] == "required" else f"default {setting['default']}"
    return safe(setting["what"]).append(f" ({setting['type']}; {written})", "dim")
