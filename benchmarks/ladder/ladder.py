"""The ladder: methods on running checksums, by `gradus compare`. `make ladder` runs it, and resumes what was stopped.

    python benchmarks/ladder/ladder.py [--seeds 5]

Trainings and their artifacts lie in `benchmarks/ladder/.gradus`. Prints one table a rung.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from make import write_problems

HERE = Path(__file__).parent
TOKENS = 160_000
TOOK_OFF = 0.5
"""Pass@1 above which a seed is counted as one that took off: seeds end far below or far above."""


class Rung(NamedTuple):
    """Methods that are compared with plain GRPO on one task."""

    title: str
    methods: tuple[str, ...]
    settings: tuple[str, ...] = ()
    num_tokens: int = TOKENS
    tune: str = ""
    """A setting with values, of which each method takes the one that is best with a seed of its own."""


def own(*names: str) -> tuple[str, ...]:
    """Return overlays of this folder."""
    return tuple(f"conditions/{name}.toml" for name in names)


HINTED = (*own("escalate", "annealed", "surface"), "seele", "guide_grpo")
TEXTS = ("sft", "luffy", "hpt")
CHOOSING = (*own("variance", "refill"), "vade", "dapo", "knapsack_rl")
OBJECTIVES = (
    *("dr_grpo", *own("sequence_mean", "symmetric", "refill"), "gspo", "cispo", "top_entropy"),
    *("ngrpo", "clip_cov", "rloo", "reinforce_plus_plus"),
)
"""Without DAPO's mean over tokens, without its clip range, both of which plain GRPO has here, and with its refilled
rounds; its penalty of overlong answers does nothing to short ones. Then other objectives."""
EASY = ('policy="starts/eta-0.1"',)
SHORT = 40_000
"""Four rounds, after which plain GRPO is half way: at 80,000 tokens every objective has arrived."""
FOUR_STEPS = ("update.minibatch_groups=8", "update.lr=3e-4")
"""Four optimiser steps a round, three of them on rows of an older policy; at lr = 1e-3 every method collapses."""
MIXED = ('problems="mixed.jsonl"',)
PATIENT = ("max_skipped_updates=1000",)
LINES = ('score.rewards=["rewards.py:lines"]',)
RUNGS = (
    Rung("error rate 0.3", (*HINTED, *TEXTS, *CHOOSING)),
    Rung("error rate 0.3, every line checked", own("escalate"), LINES),
    Rung("error rate 0.3, easier problems in the set", (*own("escalate", "variance"), "dapo"), MIXED),
    Rung("error rate 0.3, three times the tokens", own("variance"), PATIENT, 3 * TOKENS),
    Rung("error rate 0.3, learning rates tuned", own("refill"), tune="update.lr=2.5e-4,5e-4,1e-3"),
    Rung("error rate 0.1", (*own("escalate", "variance"), "dapo"), EASY),
    Rung("objectives, one step a round", OBJECTIVES, EASY, SHORT),
    Rung("objectives, four steps a round", OBJECTIVES, (*EASY, *FOUR_STEPS), SHORT),
)


def compared(rung: Rung, num_seeds: int) -> Mapping[str, Any]:
    """Return the answer of `gradus compare`, whose finished trainings are reused."""
    words = [word for method in ("none", *rung.methods) for word in ("--method", method)]
    words += [word for text in rung.settings for word in ("--set", text)]
    words += ["--tune", rung.tune] if rung.tune else []
    command = [sys.executable, "-m", "gradus", "compare", "hard.toml", *words, "--seeds", str(num_seeds)]
    command += ["--budget", f"tokens={rung.num_tokens}", "--json"]
    env = {**os.environ, "GRADUS_REPORT": "later"}
    done = subprocess.run(command, cwd=HERE, env=env, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{rung.title}: gradus compare ended with {done.returncode}; `make ladder` resumes")
    return json.loads(done.stdout)


def table(found: Mapping[str, Any]) -> str:
    """Return a row a method: pass@1, its difference from plain GRPO, each seed, groups without signal, tokens."""
    plain = found["methods"][0]
    before = plain["before"]["value"]
    heads = ("method", f"pass@1, from {before:.3f}", "points more than plain", "seeds", "seeds that took off")
    heads += ("groups without variance", "tokens")
    rows = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for method in found["methods"]:
        name = method["method"].partition("+")[2] or "plain"
        after = "{value:.3f} [{low:.3f}, {high:.3f}]".format(**method["after"])
        seeds = " ".join(f"{each['after']:.2f}" for each in method["by_seed"])
        off = sum(each["after"] > TOOK_OFF for each in method["by_seed"])
        more = "" if method is plain else difference(found["differences"], method["method"], plain["method"])
        figures = (name, after, more, seeds, f"{off} of {len(method['by_seed'])}", f"{method['dead_groups']:.0%}")
        rows.append(f"| {' | '.join(figures)} | {method['tokens']:,.0f} |")
    found_before = f"{100 * found['plan']['detectable']:.1f} points" if found["plan"]["measured"] else "not known"
    return "\n".join((f"Smallest detectable difference, before the first token: {found_before}\n", *rows))


def difference(pairs: Sequence[Mapping[str, Any]], method: str, than: str) -> str:
    """Return the points between two methods, with 95 % interval and verdict."""
    for pair in pairs:
        if {pair["method"], pair["than"]} == {method, than}:
            sign = 1 if pair["method"] == method else -1
            value, *ends = (100 * sign * pair["difference"][name] for name in ("value", "low", "high"))
            low, high = sorted(ends)
            verdict = pair["verdict"] if sign > 0 else {"better": "worse", "worse": "better"}.get(pair["verdict"])
            return f"{value:+.1f} [{low:+.1f}, {high:+.1f}] {verdict or pair['verdict']}"
    return ""


def begun() -> int:
    """Write the problems and return the seeds that the command asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    num_seeds: int = parser.parse_args().seeds
    write_problems(HERE)
    return num_seeds


def main() -> None:
    """Run every rung."""
    num_seeds = begun()
    for rung in RUNGS:
        started = time.monotonic()
        print(
            f"## {rung.title}\n\n{table(compared(rung, num_seeds))}\n\n{time.monotonic() - started:.0f} s\n", flush=True
        )


if __name__ == "__main__":
    main()
