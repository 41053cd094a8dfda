"""The order in which `gradus lab` puts the objectives of the ladder, beside their gains, once `make ladder` has run.

    python benchmarks/ladder/laboratory.py [--seeds 5]

One training of plain GRPO, with a seed that the ladder has not, is looked at; Kendall's tau is between the gain of a
step of each method on its rounds and the gain of training it. The interval is over seeds and rounds, drawn together.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from ladder import HERE, RUNGS, Rung, begun, compared
from scipy.stats import kendalltau

SEED, NUM_DRAWS = 101, 2000
AGES = {"objectives, one step a round": "0", "objectives, four steps a round": "0,1"}
"""One step a round sees rows of its own policy alone; of four steps the later ones do not."""
FIGURES = {
    "gain of a step on held-out rollouts": "held_out_gain",
    "signal to noise": "signal_to_noise",
    "right less wrong": "held_out_right",
}


def gradus(*words: str) -> Any:
    """Return the answer of a command of the program."""
    command, env = [sys.executable, "-m", "gradus", *words, "--json"], {**os.environ, "GRADUS_REPORT": "later"}
    return json.loads(subprocess.run(command, cwd=HERE, env=env, stdout=subprocess.PIPE, check=True).stdout)


def stored(rung: Rung, rounds: int) -> str:
    """Train plain GRPO for some rounds and keep its policies; return the run."""
    settings = [word for text in (*rung.settings, f"seed={SEED}", "keep={last=1000}") for word in ("--set", text)]
    return str(gradus("train", "hard.toml", *settings, "--rounds", str(rounds))["run"])


def values(cells: Sequence[Mapping[str, Any]], method: str, metric: str) -> list[float]:
    """Return a metric of each cell of a method."""
    found = [cell["metrics"] for cell in cells if cell["method"] == method]
    if metric == "held_out_right":
        return [each["gradient/held_out_right"] - each["gradient/held_out_wrong"] for each in found]
    return [each[f"gradient/{metric}"] for each in found]


def tau(predicted: np.ndarray, gains: np.ndarray, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return Kendall's tau of means (methods, cells) and (methods, seeds), and its 95 % interval."""

    def of(cells: np.ndarray, seeds: np.ndarray) -> float:
        return float(kendalltau(predicted[:, cells].mean(1), gains[:, seeds].mean(1)).statistic)

    every = of(np.arange(predicted.shape[1]), np.arange(gains.shape[1]))
    drawn = [
        of(*(rng.integers(0, size, size) for size in (predicted.shape[1], gains.shape[1]))) for _ in range(NUM_DRAWS)
    ]
    low, high = np.nanquantile(drawn, (0.025, 0.975))
    return every, float(low), float(high)


def repeated(gains: np.ndarray) -> float:
    """Return the mean of Kendall's tau between the orders of two seeds and of the others: how far training repeats."""
    seeds = range(gains.shape[1])
    halves = [(pair, [seed for seed in seeds if seed not in pair]) for pair in combinations(seeds, len(seeds) // 2)]
    return float(np.mean([kendalltau(gains[:, one].mean(1), gains[:, rest].mean(1)).statistic for one, rest in halves]))


def report(rung: Rung, num_seeds: int) -> None:
    """Print a rung's methods with what was predicted and what came, and the correlations."""
    trained = compared(rung, num_seeds)
    names = [each["method"].partition("+")[2] or "none" for each in trained["methods"]]
    gains = np.array([[s["after"] - s["before"] for s in each["by_seed"]] for each in trained["methods"]])
    run = stored(rung, max(trained["methods"][0]["rounds"]))
    words = [word for name in rung.methods for word in ("--method", name)]
    looked = gradus("lab", run, *words, "--rounds", "100", "--ages", AGES[rung.title])
    cells = looked["cells"]
    counted = "select sum(completion_tokens) from samples where purpose = 'train'"
    tokens = gradus("sql", counted, "--run", run)["rows"][0][0]
    print(f"## {rung.title}\n\n| method | gain trained | {' | '.join(FIGURES)} | cosine to plain |\n{'|---' * 6}|")
    cosine = {each["method"]: each["cosine"] for each in looked["methods"]}
    for name, gain in zip(names, gains, strict=True):
        means = [f"{np.mean(values(cells, name, metric)):.3f}" for metric in FIGURES.values()]
        print(f"| {name} | {100 * gain.mean():+.1f} | {' | '.join(means)} | {cosine[name]:.3f} |")
    rng = np.random.default_rng(0)
    share = tokens / sum(each["tokens"] * num_seeds for each in trained["methods"])
    for title, metric in FIGURES.items():
        predicted = np.array([values(cells, name, metric) for name in names])
        print("\nKendall's tau, {}: {:.2f} [{:.2f}, {:.2f}]".format(title, *tau(predicted, gains, rng)))
    print(f"\nKendall's tau of two seeds and the others of the trainings: {repeated(gains):.2f}")
    print(f"\n{len(names)} methods, {num_seeds} seeds; the stored rounds have {share:.1%} of the tokens\n", flush=True)


def main() -> None:
    """Look at both rungs of objectives."""
    num_seeds = begun()
    for rung in RUNGS:
        if rung.title in AGES:
            report(rung, num_seeds)


if __name__ == "__main__":
    main()
