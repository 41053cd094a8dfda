"""The files of a comparison in the folder of its run: all its figures, two tables and a picture.

The same comparison writes the same tables, so that reporting it twice changes nothing.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from gradus.data.files import replace_file
from gradus.data.records import Figure
from gradus.tasks.formats import visible
from gradus.tasks.inspect.comparing.figures import Comparison
from gradus.tasks.inspect.comparing.plot import plot
from gradus.tasks.tracking.facts import COMPARISON, COMPARISON_PICTURE, DIFFERENCES_TABLE, METHODS_TABLE

_INTERVAL = ("value", "low", "high")
_METHOD = (
    "method",
    "rounds",
    "tokens",
    "seconds",
    "before",
    *_INTERVAL,
    *(f"gain_{end}" for end in _INTERVAL),
    "by_seed",
    "runs",
)
_DIFFERENCE = ("method", "than", *_INTERVAL, "verdict", "p_different", "p_equivalent", "detectable")


def keep_comparison(found: Comparison, folder: Path) -> None:
    """Write a comparison's files, each whole."""
    methods = [
        (
            visible(m["method"]),
            max(m["rounds"]),
            m["tokens"],
            m["seconds"],
            m["before"]["value"],
            *_ends(m["after"]),
            *_ends(m["gain"]),
            ", ".join(f"{each['after']:.4f}" for each in m["by_seed"]),
            ", ".join(m["runs"]),
        )
        for m in found["methods"]
    ]
    differences = [
        (
            visible(d["method"]),
            visible(d["than"]),
            *_ends(d["difference"]),
            d["verdict"],
            d["p_different"],
            d["p_equivalent"],
            d["detectable"],
        )
        for d in found["differences"]
    ]
    replace_file(folder / METHODS_TABLE, _table(_METHOD, methods))
    replace_file(folder / DIFFERENCES_TABLE, _table(_DIFFERENCE, differences))
    replace_file(folder / COMPARISON, json.dumps(found, indent=1))
    plot(found, folder / COMPARISON_PICTURE)


def _ends(figure: Figure) -> tuple[float, float, float]:
    return figure["value"], figure["low"], figure["high"]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | float | bool]]) -> str:
    """Rows in the format of `mlflow.log_table`."""
    return json.dumps({"columns": columns, "data": rows}, allow_nan=False)
