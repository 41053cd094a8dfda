"""The files of a laboratory: all its figures as JSON, a table of methods, a picture of cosines and gains."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradus.data.files import replace_file, replacing
from gradus.tasks.formats import label, visible
from gradus.tasks.host.libraries import default_drawing
from gradus.tasks.inspect.laboratory.figures import Laboratory, MethodFigures
from gradus.tasks.tracking.facts import LABORATORY, LABORATORY_PICTURE, LABORATORY_TABLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAME_CHARS = 32
_COLUMNS = (
    *("method", "rank", "gain", "gain_error", "right", "wrong", "cosine", "signal_to_noise", "norm", "tokens_frac"),
    *("dead_groups_frac", "clipped_frac", "masked_frac", "same_as", "seconds"),
)


def keep_laboratory(found: Laboratory, folder: Path) -> None:
    """Write a laboratory's files into a folder, each whole."""
    rows = [_row(each) for each in found["methods"]]
    table = {"columns": _COLUMNS, "data": [[row[name] for name in _COLUMNS] for row in rows]}
    replace_file(folder / LABORATORY_TABLE, json.dumps(table, allow_nan=False))
    replace_file(folder / LABORATORY, json.dumps(found, indent=1))
    plot(found, folder / LABORATORY_PICTURE)


def _row(method: MethodFigures) -> Mapping[str, object]:
    """A row in the format of `mlflow.log_table`; clips and masks at the highest age."""
    gain, oldest = method["gain"], method["by_age"][-1]
    return {
        **method,
        "method": visible(method["method"]),
        "same_as": visible(method["same_as"]),
        "gain": None if gain is None else gain["mean"],
        "gain_error": None if gain is None else gain["error"],
        "clipped_frac": oldest["clipped_frac"],
        "masked_frac": oldest["masked_frac"],
    }


@default_drawing()
def plot(found: Laboratory, path: Path) -> None:
    """Write the picture: cosines between the methods' gradients, and the gain of a step of each."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - slow, and for this picture alone
    from matplotlib.figure import Figure  # noqa: PLC0415

    methods = found["methods"]
    names = [label(each["method"], _NAME_CHARS) for each in methods]
    side = max(3.0, 0.3 * len(names) + 1.5)
    figure = Figure(figsize=(2 * side + 1, side), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    shown = left.imshow(np.array(found["cosines"]), vmin=-1, vmax=1, cmap="RdBu", aspect="auto")
    left.set_xticks(range(len(names)), names, rotation=90)
    left.set_yticks(range(len(names)), names)
    left.set_title(f"cosine of gradients, {len(found['cells'])} cells, {found['rows']:,} rollouts")
    figure.colorbar(shown, ax=left, shrink=0.6)
    _gains(right, methods)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)


def _gains(axes: "Axes", methods: Sequence[MethodFigures]) -> None:
    """Draw a point for each method with its standard error over cells."""
    known = [(place, each["gain"]) for place, each in enumerate(methods) if each["gain"] is not None]
    means = [gain["mean"] for _, gain in known]
    errors = [gain["error"] for _, gain in known]
    axes.errorbar(means, [place for place, _ in known], xerr=errors, fmt="o", color="#0072B2", capsize=3)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set(xlabel="change of held-out reward by a step")
    axes.tick_params(labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)
