"""Figures drawn by matplotlib: as SVG that takes the colours of its page, and as PNG on white.

Text stays text in the SVG, colours are CSS variables of the page, so that one drawing is readable in light and dark.
Left out: titles, which the page says, so that no label is cut.
"""

import contextlib
import io
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from gradus.data.arrays import Floats
from gradus.data.files import replacing
from gradus.tasks.formats import label, visible
from gradus.tasks.host.libraries import default_drawing
from gradus.tasks.inspect.report.figures import NOT_SOLVED, Figure

INK, FAINT = "#1f2328", "#8b949e"
SERIES = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#1b7c83", "#57606a")
VARIABLES = {INK: "--ink", FAINT: "--faint", **{colour: f"--series-{i}" for i, colour in enumerate(SERIES)}}
"""The CSS variable that stands for each colour of a drawing."""
MAX_BARS = 12
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "gradus",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.25,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), FAINT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
}


@contextlib.contextmanager
def _drawn(figure: Figure) -> Generator[Drawing]:
    """Provide the drawing of a figure while matplotlib has the style to save it in."""
    with default_drawing(_STYLE):
        drawing = Drawing(figsize=(6.4, _height(figure)), layout="constrained")
        {"lines": _lines, "heat": _heat, "bars": _bars, "costs": _costs}[figure.kind](drawing.subplots(), figure)
        yield drawing


def _height(figure: Figure) -> float:
    """Return the height of a drawing, inches."""
    num = len(figure.frame)
    heights = {"heat": min(5.0, max(1.6, 0.035 * num + 1.0)), "costs": 0.28 * min(MAX_BARS, num) + 0.7}
    return heights.get(figure.kind, 3.0)


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
    _rounds(axes, named=len(figure.frame) > 1)


def _heat(axes: Axes, figure: Figure) -> None:
    rounds, rates = figure.rounds, np.ma.masked_invalid(_by_round(figure, np.nan))
    drawn = axes.imshow(rates, aspect="auto", interpolation="nearest", cmap="viridis", vmin=0, vmax=1)
    axes.grid(visible=False)
    axes.set_facecolor((FAINT, 0.3))  # what was not sampled is not taken for a pass rate of 0
    places = np.unique(np.linspace(0, len(rounds) - 1, min(12, len(rounds))).round().astype(int))
    axes.set_xticks(places, [str(rounds[place]) for place in places])
    axes.set_yticks([])
    axes.set_xlabel("round")
    axes.set_ylabel(f"{len(rates)} problems")
    axes.figure.colorbar(drawn, ax=axes, label="pass rate", shrink=min(1.0, 2.4 / _height(figure)))


def _bars(axes: Axes, figure: Figure) -> None:
    counts = _by_round(figure, 0)
    for index, (name, below) in enumerate(zip(figure.frame, np.cumsum(counts, axis=0) - counts, strict=True)):
        colour = FAINT if name == NOT_SOLVED else SERIES[2 * index % len(SERIES)]
        axes.bar(figure.rounds, counts[index], bottom=below, color=colour, label=label(name))
    axes.set_ylabel("problems")
    _rounds(axes, named=True)


def _costs(axes: Axes, figure: Figure) -> None:
    seconds = {label(name): row[0][0] for name, row in figure.frame.items() if row[0][0] > 0}
    names = list(seconds)[:MAX_BARS][::-1]
    axes.barh(names, [seconds[name] for name in names], color=SERIES[0])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds")


def _by_round(figure: Figure, absent: float) -> Floats:
    """Return the first number of each name and round (N, R)."""
    return np.array([[row.get(at, (absent,))[0] for at in figure.rounds] for row in figure.frame.values()], np.float64)


def _rounds(axes: Axes, *, named: bool) -> None:
    """Have whole rounds below the axes, and the names above them, where they hide nothing."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
    if axes.get_xlim()[1] - axes.get_xlim()[0] < 1:
        middle = sum(axes.get_xlim()) / 2
        axes.set_xlim(middle - 0.5, middle + 0.5)
    if named:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)


def svg(figure: Figure) -> Markup:
    """Return the drawing as an element of a page: no colours, sizes, ids or metadata of its own, texts escaped."""
    out = io.StringIO()
    with _drawn(figure) as drawing:
        drawing.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<(metadata|style)\b.*?</\1>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' width="[\d.]+pt"| height="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{figure.key}-", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    named = f'<svg role="img" aria-label="{escape(visible(figure.heading, 200))}" '
    return Markup(text.replace("<svg ", named, 1))  # noqa: S704 - matplotlib has escaped the texts in it


def write_png(figure: Figure, path: Path) -> None:
    """Write the drawing on white under its title."""
    with replacing(path) as file, _drawn(figure) as drawing:
        drawing.suptitle(label(figure.heading), fontsize=11)
        drawing.savefig(file, format="png", dpi=150, facecolor="white")
