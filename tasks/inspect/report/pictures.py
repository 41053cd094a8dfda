"""Figures drawn by matplotlib: as SVG that takes the colours of its page, and as PNG on white.

Text stays text in the SVG, colours are CSS variables of the page, so that one drawing is readable in light and dark.
Left out: titles, which the page says, so that no label is cut.
"""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from gradus.data.files import replacing
from gradus.tasks.formats import label, visible
from gradus.tasks.host.setting_files import default_drawing
from gradus.tasks.inspect.report.figures import NOT_SOLVED, Figure

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


def draw(figure: Figure) -> Drawing:
    """Draw a figure as its kind is drawn."""
    kinds = {"lines": _lines, "heat": _heat, "bars": _bars, "costs": _costs}
    heights = {"heat": _map_height(figure), "costs": 0.28 * min(MAX_BARS, len(figure.frame)) + 0.7}
    with default_drawing(_STYLE):
        drawing = Drawing(figsize=(_WIDE, heights.get(figure.kind, _HIGH)), layout="constrained")
        kinds[figure.kind](drawing.subplots(), figure)
    return drawing


def _map_height(figure: Figure) -> float:
    return min(5.0, max(1.6, 0.035 * len(figure.frame) + 1.0))


def _lines(axes: Axes, figure: Figure) -> None:
    for index, (name, points) in enumerate(figure.frame.items()):
        colour = SERIES[index % len(SERIES)]
        at, (value, low, high) = list(points), np.array(list(points.values())).T
        axes.plot(at, value, color=colour, marker="o", markersize=3, linewidth=1.5, label=label(name))
        if len(at) > 1:
            axes.fill_between(at, low, high, color=colour, alpha=0.18, linewidth=0)
        elif np.isfinite(low).all():
            axes.vlines(at, low, high, colors=colour)
    axes.set_ylabel(figure.unit)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    _rounds(axes, num_names=len(figure.frame))


def _heat(axes: Axes, figure: Figure) -> None:
    rounds = figure.rounds
    rates = np.array([[row.get(at, (np.nan,))[0] for at in rounds] for row in figure.frame.values()], dtype=np.float64)
    cells = np.ma.masked_invalid(rates)
    drawn = axes.imshow(cells, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=1)
    axes.grid(visible=False)
    axes.set_facecolor((FAINT, 0.3))  # what was not sampled is not taken for a pass rate of 0
    places = np.unique(np.linspace(0, len(rounds) - 1, min(12, len(rounds))).round().astype(int))
    axes.set_xticks(places, [str(rounds[place]) for place in places])
    axes.set_yticks([])
    axes.set_xlabel("round")
    axes.set_ylabel(f"{len(rates)} problems")
    axes.figure.colorbar(drawn, ax=axes, label="pass rate", shrink=min(1.0, 2.4 / _map_height(figure)))


def _bars(axes: Axes, figure: Figure) -> None:
    rounds = figure.rounds
    bottom = np.zeros(len(rounds))
    for index, (name, row) in enumerate(figure.frame.items()):
        colour = FAINT if name == NOT_SOLVED else SERIES[2 * index % len(SERIES)]
        counts = np.array([row.get(at, (0,))[0] for at in rounds])
        axes.bar(rounds, counts, bottom=bottom, color=colour, label=label(name))
        bottom += counts
    axes.set_ylabel("problems")
    _rounds(axes, num_names=len(figure.frame) + 1)


def _costs(axes: Axes, figure: Figure) -> None:
    seconds = {label(name): row[0][3] for name, row in figure.frame.items() if row[0][3] > 0}
    names = list(seconds)[:MAX_BARS][::-1]
    axes.barh(names, [seconds[name] for name in names], color=SERIES[0])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds")


def _rounds(axes: Axes, *, num_names: int) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    if axes.get_xlim()[1] - axes.get_xlim()[0] < 1:
        middle = sum(axes.get_xlim()) / 2
        axes.set_xlim(middle - 0.5, middle + 0.5)
    if num_names > 1:  # above the axes, where it hides nothing
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)


def svg(figure: Figure) -> Markup:
    """Return the drawing as an element of a page: no colours, sizes, ids or metadata of its own, texts escaped."""
    out = io.StringIO()
    with default_drawing(_STYLE):
        draw(figure).savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{figure.key}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    named = f'<svg role="img" aria-label="{escape(visible(figure.heading, 200))}" '
    return Markup(text.replace("<svg ", named, 1))  # noqa: S704 - matplotlib has escaped the texts in it


def write_png(figure: Figure, path: Path) -> None:
    """Write the drawing on white under its title."""
    with default_drawing(_STYLE), replacing(path) as file:
        drawing = draw(figure)
        drawing.suptitle(label(figure.heading), fontsize=11)
        drawing.savefig(file, format="png", dpi=150, facecolor="white")
