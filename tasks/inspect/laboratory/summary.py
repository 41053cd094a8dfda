"""Means over cells, cosines of stored gradients, and the order of methods by gain."""

from collections.abc import Mapping, Sequence

import numpy as np
from safetensors.numpy import load

from gradus.data.arrays import Floats
from gradus.data.errors import CorruptArtifactError
from gradus.data.lake.schema import HALVES, HALVES_FILE
from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.laboratory.figures import AtAge, Cell, Failure, Laboratory, MethodFigures, Spread

Place = tuple[str, int, int]
"""Run, round and age of a cell."""
_SAME = 1e-6
"""Cosine of two gradients below 1 by at most this, and norms as near: float32 gradients of one objective."""


def laboratory(store: Store, cells: Sequence[Cell], failed: Sequence[Failure], remarks: Sequence[str]) -> Laboratory:
    """Return the figures of all methods, the best gain first behind the first method, which others are compared to."""
    names = list(dict.fromkeys(cell["method"] for cell in cells))
    by_place: dict[Place, dict[str, Cell]] = {}
    for cell in cells:
        by_place.setdefault((cell["run"], cell["round"], cell["age"]), {})[cell["method"]] = cell
    cosines, ratios = _angles(store, list(by_place.values()), names)
    figures = [_figures(name, [cell for cell in cells if cell["method"] == name]) for name in names]
    for place, each in enumerate(figures):
        each["cosine"] = float(cosines[place, 0])
        same = ((cosines[place, :place] > 1 - _SAME) & (np.abs(ratios[place, :place] - 1) < _SAME)).nonzero()[0]
        each["same_as"] = names[int(same[0])] if len(same) else ""
    order = sorted(range(len(names)), key=lambda place: -_gain(figures[place]))
    for rank, place in enumerate(order, start=1):
        figures[place]["rank"] = rank
    shown = [0, *(place for place in order if place)] if names else []
    return {
        "runs": list(dict.fromkeys(run for run, _, _ in by_place)),
        "rounds": sorted({round_ for _, round_, _ in by_place}),
        "ages": sorted({age for _, _, age in by_place}),
        "rows": sum(_rows(store, each) for each in by_place.values()),
        "methods": [figures[place] for place in shown],
        "cosines": cosines[np.ix_(shown, shown)].tolist(),
        "cells": [*cells],
        "failed": [*failed],
        "remarks": [*remarks],
    }


def _rows(store: Store, cells: Mapping[str, Cell]) -> int:
    """Return the rollouts of a place, those of the method that takes most."""
    return max(store.manifest(Ref.parse(cell["artifact"])).rows for cell in cells.values())


def _gain(figures: MethodFigures) -> float:
    return -np.inf if figures["gain"] is None else figures["gain"]["mean"]


def _figures(name: str, cells: Sequence[Cell]) -> MethodFigures:
    def known(metric: str) -> list[float]:
        return [cell["metrics"][f"gradient/{metric}"] for cell in cells if f"gradient/{metric}" in cell["metrics"]]

    def mean(metric: str) -> float | None:
        values = known(metric)
        return float(np.mean(values)) if values else None

    ages = sorted({cell["age"] for cell in cells})
    return {
        "method": name,
        "rank": 0,
        "gain": _spread(known("held_out_gain")),
        "right": mean("held_out_right"),
        "wrong": mean("held_out_wrong"),
        "cosine": 0.0,
        "signal_to_noise": mean("signal_to_noise"),
        "norm": mean("norm") or 0.0,
        "tokens_frac": mean("tokens_frac") or 0.0,
        "dead_groups_frac": mean("dead_groups_frac") or 0.0,
        "by_age": [_at_age(age, [cell for cell in cells if cell["age"] == age]) for age in ages],
        "same_as": "",
        "seconds": sum(cell["seconds"] for cell in cells),
    }


def _at_age(age: int, cells: Sequence[Cell]) -> AtAge:
    clipped, masked = (
        float(np.mean([cell["metrics"].get(f"gradient/{name}_frac", 0.0) for cell in cells]))
        for name in ("clipped", "masked")
    )
    return {"age": age, "rounds": len(cells), "clipped_frac": clipped, "masked_frac": masked}


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "error": error}


def _angles(store: Store, places: Sequence[Mapping[str, Cell]], names: Sequence[str]) -> tuple[Floats, Floats]:
    """Mean cosines over the places that both methods have, (methods, methods), and the ratios of their norms."""
    total, ratio = np.zeros((len(names), len(names))), np.zeros((len(names), len(names)))
    count = np.zeros_like(total)
    for cells in places:
        there = [place for place, name in enumerate(names) if name in cells]
        if not there:
            continue
        gradients = np.stack([_whole(store, Ref.parse(cells[names[place]]["artifact"])) for place in there])
        norms = np.linalg.norm(gradients, axis=1)
        safe = np.where(norms > 0, norms, 1.0)
        at = np.ix_(there, there)
        total[at] += (gradients @ gradients.T) / np.outer(safe, safe)
        ratio[at] += np.outer(safe, 1 / safe)
        count[at] += 1
    return total / np.maximum(count, 1), ratio / np.maximum(count, 1)


def _whole(store: Store, ref: Ref) -> Floats:
    """The gradient of an artifact, (K,) float64."""
    content = store.read_file(ref, HALVES_FILE)
    if content is None:
        raise CorruptArtifactError(f"{ref} has no {HALVES_FILE}", hint="repeat the command with another home")
    found = load(content)
    return sum((found[name].astype(np.float64) for name in HALVES), np.zeros(1))
