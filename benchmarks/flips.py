"""Flip one bit at a time in the records of a home, and compare what the verbs that read say with what they said before.

    python benchmarks/flips.py                          # 200 flips in a home with two trainings of the tests' recipe
    python benchmarks/flips.py --times 50 --seed 1
    python benchmarks/flips.py --home FOLDER            # make the trainings there once, and use them again

Each flip is one bit of a manifest, another JSON file of the lake, or a run.json or events.jsonl, the
kinds in turn. The file keeps its size and its time, as on a disk that decays; every other flip meets no caches. Then
`sql`, `runs`, `show`, `compare` and `report` run in this process, so that a flip costs seconds rather than a minute,
and the file gets its bytes back. Harmless: every verb answers as before. Found: the others end with a sentence that
names the file, its artifact or its run, and exit code 1 or 2. Wrong: anything else, such as another answer in silence;
each is printed, and the exit code is 1.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.e2e.conftest import RECIPE, SAMPLES, Program, _write_some  # noqa: E402 - the checkout comes first
from tests.faults.damaged_homes import QUERY, Said, names_of, said, wrong  # noqa: E402

RUNS = ("first", "second")
KINDS = {
    "manifests": "lake/*/*/_manifest.json",
    "other JSON of the lake": "lake/*/*/*.json",
    "run.json": "runs/*/run.json",
    "events.jsonl": "runs/*/events.jsonl",
}
FIGURES = """
select 'rollouts', policy, count(*)::double, sum(len(completion_tokens)) from rollouts group by all
union all select 'scores', verifier, avg(reward), count_if(correct) from scores group by all
union all select 'updates', checkpoint, avg(advantage), count(*) from updates group by all
union all select 'evaluations', suite, sum(k), sum(n) from evaluations group by all
union all select 'difficulty', problem_id, k, n from difficulty
union all select 'plan', group_id, n, hint_level from plan
order by all
"""
MAX_WHOLE_BYTES = 100_000
"""A larger file is a tokenizer's, of which a verb reads what it needs."""


def make_home(home: Path) -> None:
    """Train twice with different seeds."""
    home.mkdir(parents=True, exist_ok=True)
    for name, every in (("train", 7), ("heldout", 3)):
        _write_some(SAMPLES / f"{name}.parquet", home / f"{name}.jsonl", every)
    for seed, run in enumerate(RUNS):
        code, _, err = Program(home).run("train", str(RECIPE), "--run", run, "--set", f"seed={seed}")
        if code:
            sys.exit(err)


def verbs_of(home: Path) -> dict[str, Sequence[str]]:
    """Return the words of every verb that reads; `show` also of an artifact."""
    first, _ = RUNS
    (evaluated, *_) = sorted((home / "lake" / "evaluations").glob("*"))
    return {
        "sql, every record": ("sql", QUERY, "--json"),
        "sql, figures": ("sql", FIGURES, "--json"),
        "sql --run": ("sql", QUERY, "--run", first, "--json"),
        "runs": ("runs", "--json"),
        "show": ("show", first, "--json"),
        "show an artifact": ("show", f"evaluations/{evaluated.name}", "--json"),
        "compare": ("compare", *RUNS, "--json"),
        "compare for people": ("compare", *RUNS),
        "report": ("report", first, "--out", "{out}"),
    }


def forget(home: Path) -> None:
    """Remove the cache of manifests."""
    shutil.rmtree(home / "lake" / ".index", ignore_errors=True)


def flip(path: Path, rng: random.Random) -> int:
    """Flip one bit of a file in its place; return the bit."""
    content = bytearray(path.read_bytes())
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    put_back(path, bytes(content))
    return bit


def put_back(path: Path, content: bytes) -> None:
    """Write a file's bytes without another size, time or inode."""
    then = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))


def outcome(home: Path, path: Path, before: Mapping[str, Said], verbs: Mapping[str, Sequence[str]]) -> tuple[str, str]:
    """Return what a home with one damaged file came to, and what was wrong with it."""
    found = "harmless"
    for verb, words in verbs.items():
        now = said(home, words)
        if fault := wrong(before[verb], now, names_of(path.relative_to(home))):
            return "wrong", f"{verb}: {fault}"
        if now != before[verb]:
            found = "found"
    return found, ""


def main() -> None:
    """Print a line for each flip that a verb got wrong, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, default=None)
    given = parser.parse_args()
    rng, counts = random.Random(given.seed), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory() as name:
        home = Path(os.path.realpath(given.home or name))
        if not (home / "runs").is_dir():
            make_home(home)
        verbs = verbs_of(home)
        before = {verb: said(home, words) for verb, words in verbs.items()}
        if failed := {verb: each.aside for verb, each in before.items() if each.code}:
            sys.exit(f"not even undamaged: {failed}")
        for number in range(given.times):
            kind = list(KINDS)[number % len(KINDS)]
            path = rng.choice([p for p in sorted(home.glob(KINDS[kind])) if p.stat().st_size < MAX_WHOLE_BYTES])
            content = path.read_bytes()
            if number % 2:
                forget(home)
            try:
                bit = flip(path, rng)
                what, fault = outcome(home, path, before, verbs)
            finally:
                put_back(path, content)
            counts[kind, what] += 1
            if fault:
                print(f"{number}: bit {bit} of {path.relative_to(home)}: {fault}", flush=True)
    print("| file | flips | harmless | found | wrong |\n|---|---|---|---|---|")
    for kind in KINDS:
        row = [counts[kind, what] for what in ("harmless", "found", "wrong")]
        print(f"| {kind} | {sum(row)} | {' | '.join(map(str, row))} |")
    sys.exit(any(what == "wrong" for _, what in counts))


if __name__ == "__main__":
    main()
