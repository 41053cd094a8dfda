"""Rows on which rewards disagree, for the report of `gradus agree` and `gradus amend`: what each read, side by side."""

import json
from pathlib import Path
from typing import Any, TypedDict

from gradus.data.errors import CorruptArtifactError, OnDamage
from gradus.tasks.formats import interval, number, share
from gradus.tasks.inspect.agreement.pairs import Cell, Flip, Pair
from gradus.tasks.tracking.facts import AGREEMENT


class Disagreement(TypedDict):
    """Two rewards on the page: a table of their verdicts, what would change, and rows on which they disagree."""

    names: tuple[str, str]
    num_flips: int
    table: list[list[str]]
    updates: list[str]
    flips: list[dict[str, Any]]


def read_disagreements(folder: Path, on_damage: OnDamage) -> list[Disagreement]:
    """Return each pair of the agreement in a run's folder as the page shows it; none if the run is no agreement."""
    path = folder / AGREEMENT
    try:
        return [_of_pair(pair) for pair in json.loads(path.read_bytes())["pairs"]]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        on_damage(CorruptArtifactError(f"{path} is no agreement of rewards", hint="run `gradus agree` again"))
        return []


def _of_pair(pair: Pair) -> Disagreement:
    first, second = pair["first"], pair["second"]
    head = ["rows of", "rows", "both right", f"{first} alone", f"{second} alone", "agreement", "kappa"]
    return {
        "names": (str(first), str(second)),
        "num_flips": int(pair["num_flips"]),
        "table": [head, *map(_line, pair["cells"])],
        "updates": [
            f"{each['run']}: every update would be the same"
            if each["round"] is None
            else f"{each['run']}: the first update that differs is that of round {each['round']}"
            for each in pair["divergences"]
        ],
        "flips": [_row(each, str(first), str(second)) for each in pair["flips"]],
    }


def _line(cell: Cell) -> list[str]:
    kappa = cell["kappa"]
    return [
        f"{cell['by']} {cell['value']}".strip(),
        *(str(cell[name]) for name in ("rows", "both_right", "only_first", "only_second")),
        share(cell["agreement"]),
        "-" if kappa is None else interval(kappa, number),
    ]


def _row(flip: Flip, first: str, second: str) -> dict[str, Any]:
    sides = [
        (name, flip["right"] == name, str(flip[at] or "nothing")) for name, at in ((first, "first"), (second, "second"))
    ]
    return {
        "title": f"{flip['run']}, round {flip['round']}: {flip['right']} says right",
        "rollout_id": str(flip["rollout_id"]),
        "completion": str(flip["completion"]),
        "sides": sides,
    }
