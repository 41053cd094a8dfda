"""Charts, maps and bars drawn by matplotlib: as SVG that takes the colours of its page, and as PNG on white.

Text stays text in the SVG, colours are CSS variables of the page, so that one drawing is readable in light and dark.
Left out: titles, which the page says, so that no label is cut.
"""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradus.data.files import replacing
from gradus.tasks.formats import visible
from gradus.tasks.host.setting_files import default_drawing
from gradus.tasks.inspect.report.figures import NOT_SOLVED, Chart, RateMap, Stack, StageCost

INK, FAINT = "#1f2328", "#8b949e"
SERIES = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#57606a")
VARIABLES = {INK: "--ink", FAINT: "--faint", **{colour: f"--series-{i}" for i, colour in enumerate(SERIES)}}
"""The CSS variable that stands for each colour of a drawing."""
MAX_BARS = 12
_WIDE, _HIGH = 6.4, 3.0
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradus",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.alpha": 0.25,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}

Picture = Chart | RateMap | Stack
Draw = Callable[[Axes], None]


def draw_chart(chart: Chart) -> Figure:
    """Draw the curves with their bands."""

    def draw(axes: Axes) -> None:
        for index, curve in enumerate(chart.curves):
            colour = SERIES[index % len(SERIES)]
            at = [point.round for point in curve.points]
            value, low, high = (np.array([getattr(p, name) for p in curve.points]) for name in ("value", "low", "high"))
            axes.plot(at, value, color=colour, marker="o", markersize=3, linewidth=1.5, label=plain(curve.name))
            if len(at) > 1:
                axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
            elif np.isfinite(low).all():
                axes.vlines(at, low, high, colors=colour)
        axes.set_ylabel(chart.unit)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
        _rounds(axes)
        if len(chart.curves) > 1:
            _legend(axes)

    return _figure(draw)


def draw_map(rates: RateMap) -> Figure:
    """Draw pass rates, a problem a row."""
    height = min(5.0, max(1.6, 0.035 * len(rates.problems) + 1.0))

    def draw(axes: Axes) -> None:
        cells = np.ma.masked_invalid(np.array(rates.rates, dtype=np.float64))
        drawn = axes.imshow(cells, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=1)
        axes.grid(visible=False)
        axes.set_facecolor((FAINT, 0.3))  # what was not sampled is not taken for a pass rate of 0
        places = np.unique(np.linspace(0, len(rates.rounds) - 1, min(12, len(rates.rounds))).round().astype(int))
        axes.set_xticks(places, [str(rates.rounds[place]) for place in places])
        axes.set_yticks([])
        axes.set_xlabel("round")
        axes.set_ylabel(f"{len(rates.problems)} problems")
        axes.figure.colorbar(drawn, ax=axes, label="pass rate", shrink=min(1.0, 2.4 / height))

    return _figure(draw, height)


def draw_stack(stack: Stack) -> Figure:
    """Draw the counts of each round one above the other."""

    def draw(axes: Axes) -> None:
        bottom = np.zeros(len(stack.rounds))
        for index, (name, counts) in enumerate(stack.parts.items()):
            colour = FAINT if name == NOT_SOLVED else SERIES[2 * index % len(SERIES)]
            axes.bar(stack.rounds, counts, bottom=bottom, color=colour, label=plain(name))
            bottom += np.array(counts)
        axes.set_ylabel("problems")
        _rounds(axes)
        _legend(axes)

    return _figure(draw)


def draw_costs(costs: Sequence[StageCost]) -> Figure:
    """Draw the seconds of the most expensive stages."""
    chosen = [cost for cost in costs if cost.seconds > 0][:MAX_BARS][::-1]
    names = [plain(stage_name(cost)) for cost in chosen]

    def draw(axes: Axes) -> None:
        axes.barh(names, [cost.seconds for cost in chosen], color=SERIES[0])
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("seconds")

    return _figure(draw, 0.28 * len(chosen) + 0.7)


def stage_name(cost: StageCost) -> str:
    """Return what a stage is called in lists: with its purpose unless that is training."""
    return cost.stage if cost.purpose in ("train", cost.stage) else f"{cost.stage} ({cost.purpose})"


def svg(figure: Figure, key: str, title: str) -> str:
    """Return the drawing as an element of a page: no colours, sizes, ids or metadata of its own."""
    out = io.StringIO()
    with default_drawing(_STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{key}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.replace("<svg ", f'<svg role="img" aria-label="{escape(visible(title, 200))}" ', 1)


def write_png(figure: Figure, title: str, path: Path) -> None:
    """Write the drawing on white under its title."""
    with default_drawing(_STYLE), replacing(path) as file:
        figure.suptitle(plain(title), fontsize=11)
        figure.savefig(file, format="png", dpi=150, facecolor="white")


def plain(text: str) -> str:
    """Return a label that matplotlib does not take for a formula."""
    return visible(text, 60).replace("$", r"\$")


def _figure(draw: Draw, height: float = _HIGH) -> Figure:
    with default_drawing(_STYLE):
        figure = Figure(figsize=(_WIDE, height), layout="constrained")
        draw(figure.subplots())
    return figure


def _rounds(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    if axes.get_xlim()[1] - axes.get_xlim()[0] < 1:
        middle = sum(axes.get_xlim()) / 2
        axes.set_xlim(middle - 0.5, middle + 0.5)


def _legend(axes: Axes) -> None:
    """Above the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)
