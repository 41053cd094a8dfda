"""The results of `gradus lab`: gradients of methods on the same rows, side by side, and their files.

The types are the answer of `gradus lab --json`; shares are from 0 to 1. The files are all figures as JSON, a table of
methods, and a picture of cosines and gains.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired, TypedDict

import numpy as np
from safetensors.numpy import load

from gradus.data.arrays import Floats
from gradus.data.errors import CorruptArtifactError
from gradus.data.files import replace_file, replacing
from gradus.data.lake.schema import HALVES, HALVES_FILE
from gradus.data.lake.store import Ref, Store
from gradus.tasks.formats import label
from gradus.tasks.host.libraries import default_drawing
from gradus.tasks.inspect.comparing.figures import Comparison
from gradus.tasks.runs.records import Metrics
from gradus.tasks.tracking.facts import LABORATORY, LABORATORY_PICTURE, LABORATORY_TABLE, logged_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Place = tuple[str, int, int]
"""Run, round and age of a cell."""
_SAME = 1e-6
"""Cosine of two gradients below 1 by at most this, and norms as near: float32 gradients of one objective."""
_COLUMNS = (
    *("method", "rank", "gain", "gain_error", "right", "wrong", "cosine", "signal_to_noise", "norm", "tokens_frac"),
    *("dead_groups_frac", "clipped_frac", "masked_frac", "same_as", "seconds"),
)


class Cell(TypedDict):
    """The gradient of a method on a round, by a policy that is `age` updates newer than that which sampled."""

    method: str
    run: str
    round: int
    age: int
    artifact: str
    seconds: float
    metrics: Metrics


class Failure(TypedDict):
    """A method that could not be computed on these rounds."""

    method: str
    reason: str


class AtAge(TypedDict):
    """Means over the rounds at one age of the rows."""

    age: int
    rounds: int
    clipped_frac: float
    masked_frac: float


class Spread(TypedDict):
    """A mean over cells with its standard error, 0 for a single one."""

    mean: float
    error: float


class MethodFigures(TypedDict):
    """Means over the rounds and ages of a method; None for what no round has."""

    method: str
    rank: int
    """Place by gain, from 1."""
    gain: Spread | None
    """To first order, by how much a step raises the mean reward of held-out problems."""
    right: float | None
    """Change of the log-prob of right held-out completions by that step, nats a completion."""
    wrong: float | None
    cosine: float | None
    """Cosine to the gradient of the first method; None if they pull together nowhere."""
    signal_to_noise: float | None
    norm: float
    tokens_frac: float
    """Share of tokens that are pulled at."""
    dead_groups_frac: float
    """Share of groups that nothing pulls at."""
    by_age: list[AtAge]
    same_as: str
    """The method before it whose gradients are the same on every round; empty if there is none."""
    seconds: float


class Laboratory(TypedDict):
    """Methods on the same stored rounds."""

    runs: list[str]
    rounds: list[int]
    ages: list[int]
    rows: int
    methods: list[MethodFigures]
    cosines: list[list[float | None]]
    """Cosine of each method's gradient to each other's, in the order of `methods`: means over cells where both pull."""
    cells: list[Cell]
    failed: list[Failure]
    remarks: list[str]
    comparisons: NotRequired[list[Comparison]]
    """Comparisons of those that were trained, at a quarter, half and all of the budget."""


def laboratory(store: Store, cells: Sequence[Cell], failed: Sequence[Failure], remarks: Sequence[str]) -> Laboratory:
    """Return the figures of all methods, the best gain first behind the first method, which others are compared to."""
    names = list(dict.fromkeys(cell["method"] for cell in cells))
    by_place: dict[Place, dict[str, Cell]] = {}
    for cell in cells:
        by_place.setdefault((cell["run"], cell["round"], cell["age"]), {})[cell["method"]] = cell
    cosines, ratios = _angles(store, list(by_place.values()), names)
    figures = [_figures(name, [cell for cell in cells if cell["method"] == name]) for name in names]
    for place, each in enumerate(figures):
        each["cosine"] = _known(cosines[place, 0])
        same = ((cosines[place, :place] > 1 - _SAME) & (np.abs(ratios[place, :place] - 1) < _SAME)).nonzero()[0]
        each["same_as"] = names[int(same[0])] if len(same) else ""
    gains = [-np.inf if each["gain"] is None else each["gain"]["mean"] for each in figures]
    order = sorted(range(len(names)), key=lambda place: -gains[place])
    for rank, place in enumerate(order, start=1):
        figures[place]["rank"] = rank
    shown = [0, *(place for place in order if place)] if names else []
    return {
        "runs": list(dict.fromkeys(run for run, _, _ in by_place)),
        "rounds": sorted({round_ for _, round_, _ in by_place}),
        "ages": sorted({age for _, _, age in by_place}),
        # The rollouts of a place are those of the method that takes most.
        "rows": sum(
            max(store.manifest(Ref.parse(cell["artifact"])).rows for cell in of_place.values())
            for of_place in by_place.values()
        ),
        "methods": [figures[place] for place in shown],
        "cosines": [[_known(cosines[one, other]) for other in shown] for one in shown],
        "cells": [*cells],
        "failed": [*failed],
        "remarks": [*remarks],
    }


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


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
        "cosine": None,
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
    """Return mean cosines and ratios of norms (methods, methods) over places where both pull, NaN if there is none.

    A round without signal has no angle. The ratio is infinite if one of them alone pulls somewhere.
    """
    total, ratio, count = np.zeros((3, len(names), len(names)))
    for cells in places:
        there = [place for place, name in enumerate(names) if name in cells]
        gradients = np.stack([_whole(store, Ref.parse(cells[names[place]]["artifact"])) for place in there])
        norms = np.linalg.norm(gradients, axis=1)
        pulls = norms > 0
        safe, both = np.where(pulls, norms, 1.0), np.outer(pulls, pulls)
        at = np.ix_(there, there)
        total[at] += (gradients @ gradients.T) / np.outer(safe, safe)
        ratio[at] += np.where(pulls[:, None] ^ pulls, np.inf, np.outer(safe, 1 / safe) * both)
        count[at] += both
    shared = np.where(count > 0, count, np.nan)
    return total / shared, ratio / shared


def _whole(store: Store, ref: Ref) -> Floats:
    """The gradient of an artifact, (K,) float64."""
    content = store.read_file(ref, HALVES_FILE)
    if content is None:
        raise CorruptArtifactError(f"{ref} has no {HALVES_FILE}", hint="repeat the command with another home")
    found = load(content)
    return sum((found[name].astype(np.float64) for name in HALVES), np.zeros(1))


def keep_laboratory(found: Laboratory, folder: Path) -> None:
    """Write a laboratory's files into a folder, each whole."""
    replace_file(folder / LABORATORY_TABLE, logged_table(_COLUMNS, [_row(each) for each in found["methods"]]))
    replace_file(folder / LABORATORY, json.dumps(found, indent=1))
    plot(found, folder / LABORATORY_PICTURE)


def _row(method: MethodFigures) -> Mapping[str, object]:
    """Return a row of the table; clips and masks at the highest age."""
    gain, oldest = method["gain"], method["by_age"][-1]
    means = {"gain": gain and gain["mean"], "gain_error": gain and gain["error"]}
    return {**method, **means, "clipped_frac": oldest["clipped_frac"], "masked_frac": oldest["masked_frac"]}


@default_drawing()
def plot(found: Laboratory, path: Path) -> None:
    """Write the picture: cosines between the methods' gradients, and the gain of a step of each."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow, and for this picture alone

    methods = found["methods"]
    names = [label(each["method"], 32) for each in methods]
    side = max(3.0, 0.3 * len(names) + 1.5)
    figure = Figure(figsize=(2 * side + 1, side), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2), sharey=True)
    shown = left.imshow(np.array(found["cosines"], np.float64), vmin=-1, vmax=1, cmap="RdBu", aspect="auto")
    left.set_xticks(range(len(names)), names, rotation=90)
    left.set_yticks(range(len(names)), names)
    left.set_title(f"cosine of gradients, {len(found['cells'])} cells, {found['rows']:,} rollouts")
    figure.colorbar(shown, ax=left, shrink=0.6)
    _gains(right, methods)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)


def _gains(axes: "Axes", methods: Sequence[MethodFigures]) -> None:
    known = [(place, each["gain"]) for place, each in enumerate(methods) if each["gain"] is not None]
    means, errors = ([gain[name] for _, gain in known] for name in ("mean", "error"))
    axes.errorbar(means, [place for place, _ in known], xerr=errors, fmt="o", color="#0072B2", capsize=3)
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set(xlabel="change of held-out reward by a step")
    axes.tick_params(labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)
