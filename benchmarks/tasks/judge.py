"""Does training help on the bundled tasks? `python benchmarks/tasks/judge.py FOLDER [TASK ...]`.

For each task 240 problems that are neither bundled nor among the lessons of the policy; trainings of five seeds are
compared with their start on them. The lessons have every question of `programs`, so that it is judged on its 60 bundled
ones. 25 to 80 s a training on two idle cores; what the home has is reused.
"""

import sys
from pathlib import Path

import numpy as np
from kinds import KINDS, rows
from make import drawn, write

import gradus

NUM_PROBLEMS, NUM_SEEDS = 240, 5
TAUGHT_WHOLE = ("programs",)
METHODS = Path(__file__).parents[2] / "recipes" / "tasks"


def main() -> None:
    """Print a line for each task."""
    folder, *chosen = sys.argv[1:]
    _, lessons, known = drawn()
    known |= {str(each["question"]) for each in lessons}
    print("| task | before | after | gain, points (95 %) | by seed | p | detectable | against its start |")
    print("|---" * 8 + "|")
    for seed, kind in enumerate(KINDS):
        if chosen and kind not in chosen:
            continue
        evaluated = f"bundled:{kind}-heldout"
        if kind not in TAUGHT_WHOLE:
            problems = rows(kind, NUM_PROBLEMS, np.random.default_rng((2, seed)), known)
            path = write(Path(folder).absolute() / f"{kind}-judged.jsonl", problems)
            evaluated = gradus.ingest(str(path), set={"answers": "optional"})
        print(judged(kind, evaluated), flush=True)


def judged(kind: str, evaluated: str) -> str:
    """Return the line of a task, evaluated on these problems."""
    method = str(METHODS / f"{kind}.toml")
    found = gradus.compare(["tasks"], method=[method], seeds=NUM_SEEDS, set=[f"evaluate.problems={evaluated}"])
    (trained,), (gain,) = found["methods"], found["gains"]
    low, value, high = (100 * gain["difference"][end] for end in ("low", "value", "high"))
    rates = f"{trained['before']['value']:.2f} | {trained['after']['value']:.2f}"
    by_seed = " ".join(f"{100 * each:+.1f}" for each in gain["by_seed"])
    figures = f"{value:+.1f} [{low:.1f}, {high:.1f}] | {by_seed} | {gain['p_different']:.2g}"
    return f"| {kind} | {rates} | {figures} | {100 * gain['detectable']:.1f} | {gain['verdict']} |"


if __name__ == "__main__":
    main()
