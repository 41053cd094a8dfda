"""Rows on which rewards disagree, for the report of `gradus agree` and `gradus amend`: what each read, side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradus.data.errors import CorruptArtifactError, OnDamage
from gradus.tasks.formats import interval, number, share
from gradus.tasks.inspect.agreement.pairs import Cell, Flip, Pair
from gradus.tasks.tracking.facts import AGREEMENT


def read_disagreements(folder: Path, on_damage: OnDamage) -> list[Mapping[str, Any]]:
    """Return each pair of the agreement in a run's folder as the page shows it; none if the run is no agreement."""
    path = folder / AGREEMENT
    try:
        return [_of_pair(pair) for pair in json.loads(path.read_bytes())["pairs"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        on_damage(CorruptArtifactError(f"{path} is no agreement of rewards", hint="run `gradus agree` again"))
        return []


def _of_pair(pair: Pair) -> Mapping[str, Any]:
    names = first, second = str(pair["first"]), str(pair["second"])
    head = ["rows of", "rows", "both right", f"{first} alone", f"{second} alone", "agreement", "kappa"]
    updates = [
        f"{each['run']}: every update would be the same"
        if each["round"] is None
        else f"{each['run']}: the first update that differs is that of round {each['round']}"
        for each in pair["divergences"]
    ]
    table = [head, *map(_line, pair["cells"])]
    flips = [_row(each, names) for each in pair["flips"]]
    return {"names": names, "num_flips": int(pair["num_flips"]), "table": table, "updates": updates, "flips": flips}


def _line(cell: Cell) -> list[str]:
    counts = (str(cell[name]) for name in ("rows", "both_right", "only_first", "only_second"))
    kappa = "-" if cell["kappa"] is None else interval(cell["kappa"], number)
    return [f"{cell['by']} {cell['value']}".strip(), *counts, share(cell["agreement"]), kappa]


def _row(flip: Flip, names: tuple[str, str]) -> Mapping[str, Any]:
    read = zip(names, (flip["first"], flip["second"]), strict=True)
    return {
        "title": f"{flip['run']}, round {flip['round']}: {flip['right']} says right",
        "rollout_id": str(flip["rollout_id"]),
        "completion": str(flip["completion"]),
        "sides": [(name, flip["right"] == name, str(text or "nothing")) for name, text in read],
    }
