"""Trainings whose reward has a hole from a random round on, and clean ones: the round that `gradus agree` names.

    python benchmarks/reward_hole.py --runs 20          # as many of each, in a folder that is removed
    python benchmarks/reward_hole.py --rows 100000      # seconds to compare stored scores that differ on 1 % of them
    python benchmarks/reward_hole.py --bisect 300       # how often `gradus bisect` would find a simulated round

The hole: any number of a completion counts as its answer. The auditor is `numeric`, which reads the last one. No token
is sampled for it.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

import numpy as np  # noqa: E402 - the checkout comes first
import pyarrow as pa  # noqa: E402

import gradus  # noqa: E402
from gradus.data.intervals import LEVEL  # noqa: E402
from gradus.data.lake.store import Store  # noqa: E402
from gradus.tasks.inspect.agreement.numbers import Audited, search  # noqa: E402
from gradus.tasks.inspect.agreement.pairs import Judged, agreement  # noqa: E402
from gradus.tasks.runtime.supervise import keeping_workers  # noqa: E402

ROUNDS = 10
CLEAN = ROUNDS + 1
REWARD = """
import re


def judge(rows):
    found = []
    for row in rows:
        numbers = re.findall(r"-?[0-9]+", row["completion"])
        index = re.search(r"@r([0-9]+)", row["group_id"] or "")
        hole = index is not None and int(index[1]) >= {hole}
        right = row["answer"] in (numbers if hole else numbers[-1:])
        found.append({{"value": float(right), "correct": right}})
    return found
"""
SETTINGS = {
    "rounds": ROUNDS,
    "escalate": [],
    "ingest.limit": 96,
    "profile.n": 2,
    "evaluate.every": ROUNDS,
    "evaluate.sample.n": 1,
    "evaluate.report.ks": [1],
}


def named(seed: int, hole: int, num_groups: int) -> tuple[int | None, float]:
    """Train with a hole from a round on; return the round that is named, and its p value."""
    reward = Path(f"hole_{hole}.py")
    reward.write_text(REWARD.format(hole=hole))
    given = {**SETTINGS, "seed": seed, "curate.draw": num_groups, "score.rewards": [{"name": f"{reward}:judge"}]}
    run = gradus.train("demo", set=given, run=f"seed{seed}-hole{hole}")
    (divergence,) = gradus.agree(["numeric"], rollouts=[run])["pairs"][0]["divergences"]
    since = divergence["since"]
    return (None, 1.0) if since is None or since["p"] > LEVEL else (since["round"], since["p"])


def compare(num_rows: int) -> None:
    """Print the seconds of a comparison of made scores: 20 rounds, groups of 8, 300 domains."""
    drawn, size = np.random.default_rng(0), num_rows // 20
    names = [f"p{at}" for at in range(max(1, num_rows // 32))]
    with tempfile.TemporaryDirectory() as folder:
        store, judged = Store(Path(folder) / "lake"), list[Judged]()
        domains = [f"domain {at % 300}" for at in range(len(names))]
        problems = store.put("problems", pa.table({"problem_id": names, "question": names, "domain": domains}))
        for index in range(1, 21):
            ids = [f"{index}:{at}" for at in range(size)]
            asked = [names[(31 * index + at // 8) % len(names)] for at in range(size)]
            rows = {"rollout_id": ids, "problem_id": asked, "group_id": [f"{name}@r{index}" for name in asked]}
            tokens = pa.array([[1] * int(num) for num in drawn.integers(10, 400, size)], pa.list_(pa.int32()))
            rollouts = store.put(
                "rollouts", pa.table({**rows, "completion": ["x" * 400] * size, "completion_tokens": tokens})
            )
            right = drawn.random(size) < 0.5
            verdicts = (right, right ^ (drawn.random(size) < 0.01))
            scores = [
                store.put("scores", pa.table({**{k: rows[k] for k in ("rollout_id", "problem_id")}, **of}))
                for of in ({"reward": each.astype(float), "correct": each} for each in verdicts)
            ]
            judged.append(Judged("made", index, "train", rollouts, [problems], scores))
        began = time.perf_counter()
        found = agreement(store, "made", ["one", "other"], judged)
        took = time.perf_counter() - began
    print(f"{found['rollouts']} rows, {found['pairs'][0]['num_flips']} other verdicts: {took:.1f} s")


def bisections(num: int) -> None:
    """Print how often a step of the auditor's disagreement is found within one round, and false alarms without one."""
    drawn = np.random.default_rng(0)
    for before, after in ((0.02, 0.5), (0.05, 0.3), (0.05, 0.05)):
        for num_rows in (8, 16, 32):
            near = named = 0
            for _ in range(num):
                begin = int(drawn.integers(3, ROUNDS))
                rates = [after if index >= begin else before for index in range(ROUNDS + 1)]
                found = search(range(1, ROUNDS + 1), partial(audited, drawn, rates, num_rows))["round"]
                named += found is not None
                near += found is not None and abs(found - begin) <= 1
            print(
                f"{before:.0%} to {after:.0%}, {num_rows} rows a round: named {named / num:.0%}, near {near / num:.0%}"
            )


def audited(drawn: np.random.Generator, rates: list[float], num_rows: int, index: int) -> Audited:
    """Return an audited round whose rows differ at its rate."""
    return {"round": index, "rows": num_rows, "differ": int(drawn.binomial(num_rows, rates[index]))}


def main() -> None:
    """Print each run, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--groups", type=int, default=48, help="groups of 8 rollouts in a round")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--bisect", type=int)
    asked = parser.parse_args()
    if asked.bisect:
        bisections(asked.bisect)
        return
    if asked.rows:
        compare(asked.rows)
        return
    num = asked.runs
    drawn = random.Random(0)
    holes = [drawn.randrange(3, ROUNDS) for _ in range(num)]
    within, alarms, began = 0, 0, time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, keeping_workers():
        os.chdir(folder)
        os.environ |= {"GRADUS_HOME": f"{folder}/.gradus", "GRADUS_REPORT": "later"}
        for at, hole in enumerate([*holes, *[CLEAN] * num]):
            found, p = named(at + 1, hole, asked.groups)
            within += found is not None and abs(found - hole) <= 1
            alarms += hole == CLEAN and found is not None
            planted = "clean" if hole == CLEAN else f"hole from round {hole}"
            print(f"seed {at + 1}: {planted}; named: {found or 'none'} (p = {p:.4f})", flush=True)
        os.chdir("/")
    took = time.perf_counter() - began
    print(f"within 1 round: {within} of {num}; false alarms: {alarms} of {num}; {took:.0f} s")


if __name__ == "__main__":
    main()
