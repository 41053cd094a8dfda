"""Draw answers of `gradus compare --json`, one a column: the pass@1 of each seed of each method, and the mean.

python benchmarks/ladder/seeds.py PICTURE ANSWER.json...
"""

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure


def main() -> None:
    """Write the picture."""
    picture, *answers = sys.argv[1:]
    found = [json.loads(Path(answer).read_text()) for answer in answers]
    figure = Figure(figsize=(4.5 * len(found) + 1, 4.5), layout="constrained")
    for axes, answer in zip(figure.subplots(1, len(found), sharey=True, squeeze=False)[0], found, strict=True):
        names = [each["method"].partition("+")[2] or "plain" for each in answer["methods"]]
        for place, each in enumerate(answer["methods"]):
            axes.plot([seed["after"] for seed in each["by_seed"]], [place] * len(each["by_seed"]), "o", color="0.6")
            axes.plot(each["after"]["value"], place, "|", color="#0072B2", markersize=18, markeredgewidth=3)
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="pass@1 of each seed, and the mean", xlim=(0, 1), title=answer["budget"])
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].invert_yaxis()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
