"""The answer of `gradus compare --json`, and the files of a comparison. Shares are from 0 to 1.

The files are all figures as JSON, two tables, and a picture of pass@1 and of the differences. The same comparison
writes the same tables, so that reporting it twice changes nothing.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

import numpy as np

from gradus.data.files import replace_file, replacing
from gradus.data.records import Figure
from gradus.tasks.formats import label
from gradus.tasks.host.libraries import default_drawing
from gradus.tasks.tracking.facts import COMPARISON, COMPARISON_PICTURE, DIFFERENCES_TABLE, METHODS_TABLE, logged_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

START = "its start"
Verdict = Literal["better", "worse", "equivalent", "undecided"]
Fields = dict[str, Any]
"""An object whose keys are named where it stands."""
FORMATS = (".png", ".svg", ".pdf")
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's colours, which people with any colour vision can tell apart."""
_INTERVAL = ("value", "low", "high")
_METHOD = (
    *("method", "rounds", "tokens", "seconds", "before", *_INTERVAL),
    *(f"gain_{end}" for end in _INTERVAL),
    *("by_seed", "runs"),
)
_DIFFERENCE = ("method", "than", *_INTERVAL, "verdict", "p_different", "p_equivalent", "detectable")


class Cost(TypedDict):
    """Completion tokens sampled and seconds, means over seeds."""

    tokens: float
    seconds: float


class MethodFigures(Cost):
    """The result of one method: pass@1 before and after, costs a training, and its runs, one a seed."""

    method: str
    runs: list[str]
    seeds: list[int]
    rounds: list[int]
    before: Figure
    after: Figure
    gain: Figure
    by_seed: list[Fields]
    """Of each training: seed, run, rounds, tokens, seconds, pass@1 before and after."""
    truncated: float | None
    """Share of training completions that were cut off; None if no stage reported it."""
    dead_groups: float | None
    """Share of groups whose rewards are all equal; None if no stage reported it."""
    stages: dict[str, Cost]
    curve: list[Fields]
    """round, tokens sampled by then (mean over seeds) and pass_at_1; of rounds that every seed was evaluated after."""


class Judged(TypedDict):
    """The pass@1 of one method less that of another or of its own start, paired by problem and seed, and its verdict.

    The interval is that of the pair alone, 95 %; p values are adjusted for all pairs. `detectable` is the smallest
    difference that the data detect with a chance of 80 %, at the level of all pairs.
    """

    method: str
    than: str
    difference: Figure
    by_seed: list[float]
    p_different: float
    p_equivalent: float
    detectable: float
    verdict: Verdict


class Difference(Judged):
    """The difference of two methods, with what both spent."""

    sides: list[Fields]
    """method, tokens and seconds of a training of either."""
    shared_tokens: float
    """Share of the tokens of both that went into artifacts that both use."""


class PlanNote(TypedDict):
    """A plan made before: the file's digest, the smallest detectable difference, whether tokens had been sampled."""

    digest: str
    detectable: float
    measured: bool
    before_first_token: bool


class Tuning(TypedDict):
    """The result of tuning. `on` names the problems; empty: a part of the evaluated ones."""

    on: str
    problems: int
    seeds: list[int]
    methods: list[Fields]
    """method; `tried` in the order typed: values, runs, pass_at_1 (mean over seeds; None if one failed) and why it
    failed; `chosen` values, None if all failed."""
    cost: Fields
    """trainings, tokens and seconds of their stages, each counted once and evaluation left out."""
    remarks: list[str]


class Comparison(TypedDict):
    """Methods side by side. `start` is `same` if all were measured by one evaluation before training."""

    budget: str
    seeds: int
    problems: int
    margin: float
    clusters: Fields | None
    """column and number of clusters of problems."""
    plan: PlanNote | None
    start: str
    settings: list[Fields]
    """setting and its values by method, of those that are not the same for all."""
    methods: list[MethodFigures]
    gains: list[Judged]
    """Each method against START, its own pass@1 before training."""
    differences: list[Difference]
    by_difficulty: list[Fields]
    """band, problems, pass@1 before, and by method pass_at_1 and wins: at how many problems it alone is the best."""
    remarks: list[str]
    failed: NotRequired[list[Fields]]
    """method and reason of those without figures, as a training of them failed."""
    tuning: NotRequired[Tuning]


def letters(found: Comparison) -> dict[str, str]:
    """Return a letter for each method, by its name; a number after Z."""
    names = [method["method"] for method in found["methods"]]
    return {name: chr(ord("A") + i) if i < 26 else str(i + 1) for i, name in enumerate(names)}


def keep_comparison(found: Comparison, folder: Path) -> None:
    """Write a comparison's files into a folder, each whole."""
    methods = [
        {
            **method,
            **method["after"],
            **{f"gain_{end}": method["gain"][end] for end in _INTERVAL},
            "before": method["before"]["value"],
            "rounds": max(method["rounds"]),
            "by_seed": ", ".join(f"{each['after']:.4f}" for each in method["by_seed"]),
            "runs": ", ".join(method["runs"]),
        }
        for method in found["methods"]
    ]
    differences = [{**each, **each["difference"]} for each in (*found["gains"], *found["differences"])]
    replace_file(folder / METHODS_TABLE, logged_table(_METHOD, methods))
    replace_file(folder / DIFFERENCES_TABLE, logged_table(_DIFFERENCE, differences))
    replace_file(folder / COMPARISON, json.dumps(found, indent=1))
    plot(found, folder / COMPARISON_PICTURE)


@default_drawing()
def plot(found: Comparison, path: Path) -> None:
    """Write the picture of a comparison."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow, and for this option alone

    height = max(4.0, 1.2 + 0.45 * len(found["differences"])) + 0.25 * len(found["methods"])
    figure = Figure(figsize=(11, height), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    letter = letters(found)
    for method, colour in zip(found["methods"], np.resize(_COLOURS, len(found["methods"])), strict=True):
        _curve(left, method, f"{letter[method['method']]}  {label(method['method'], 40)}", str(colour))
    title = f"{found['problems']} problems, {found['seeds']} seed{'s' * (found['seeds'] > 1)}"
    title += f", {found['budget']}" if found["budget"] else ""
    left.set(xlabel="completion tokens sampled (evaluation left out)", ylabel="pass@1", title=title)
    figure.legend(loc="outside lower left", frameon=False)
    _differences(right, found, letter)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix.lower().removeprefix("."), dpi=150)


def _curve(axes: "Axes", method: MethodFigures, label: str, colour: str) -> None:
    tokens = [point["tokens"] for point in method["curve"]]
    value, low, high = (np.array([p["pass_at_1"][key] for p in method["curve"]]) for key in _INTERVAL)
    ends = np.stack([value - low, high - value])
    axes.errorbar(tokens, value, ends, marker="o", color=colour, ecolor=(colour, 0.4), capsize=3, label=label)


def _differences(axes: "Axes", found: Comparison, letter: Mapping[str, str]) -> None:
    """Draw a line for each pair of methods, grey if the verdict is undecided; the margin is a band around 0."""
    axes.axvspan(-100 * found["margin"], 100 * found["margin"], color="0.93")
    for place, each in enumerate(reversed(found["differences"])):
        value, low, high = (100 * each["difference"][key] for key in _INTERVAL)
        colour = _COLOURS[0] if each["verdict"] != "undecided" else "0.6"
        axes.plot([low, high], [place, place], color=colour, linewidth=2)
        axes.plot([value], [place], marker="o", color=colour)
    names = [f"{letter[each['method']]} − {letter[each['than']]}" for each in reversed(found["differences"])]
    axes.axvline(0, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="difference in pass@1, points (95 % interval)", ylim=(-0.6, len(names) - 0.4))
