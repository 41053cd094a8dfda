"""Kill one process of a training at random moments, repeat the command if need be, and compare with an undisturbed run.

    python benchmarks/kill_processes.py [--times 5] [--seed 0] [--kinds worker judge reporter Prefect keeper]
    python benchmarks/kill_processes.py --kinds rank --set update.launch.processes=2
    python benchmarks/kill_processes.py --kinds actor --set rollout.ray.workers=2 --set rollout.shard_rows=8

Each of the processes `KINDS` is killed with SIGKILL that often, in a training of its own with the tiny recipe of the
tests; a training in which none was there at the moment or later is compared too, and another one follows. Prints a line
for each: the process, the moment, how the command ended, and whether every manifest has the same bytes (it names the
digest of every file); for the reporter also what MLflow lacks after `gradus sync`. It takes a minute or so
for each kill, so the tests hold a few such kills (tests/e2e) and this is run by hand.
"""

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from gradus.tasks.tracking.client import status  # noqa: E402 - the checkout comes first
from tests.conftest import copy_databases  # noqa: E402
from tests.e2e.conftest import RECIPE, SAMPLES, Program, _write_some  # noqa: E402

KINDS = {
    "worker": "gradus.tasks.runtime.worker",
    "judge": "gradus.models.judging.judge",
    "rank": "gradus.tasks.stages.update.launch.rank",
    "actor": "ray::SamplingActor",
    "reporter": "gradus.tasks.tracking.reporter",
    "Prefect": "gradus.tasks.servers.prefect_app:create",
    "keeper": "gradus.tasks.servers.keeper",
}
"""The word by which each process is known on its command line."""
MAX_REPEATS = 3
Spans = dict[str, tuple[float, float]]


def new_home(root: Path, name: str, databases: Path | None) -> Program:
    """Return the program in a fresh home, with databases that are there already."""
    home = root / name
    home.mkdir()
    for part, every in (("train", 7), ("heldout", 3)):
        _write_some(SAMPLES / f"{part}.parquet", home / f"{part}.jsonl", every)
    if databases is not None:
        copy_databases(databases, home)
    return Program(home, reports=True)


def living(home: Path, kind: str) -> Iterator[psutil.Process]:
    """Processes of one kind that work for a home."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(KINDS[kind] in word for word in process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                family = [process, *process.parents()]
                if any(each.environ().get("GRADUS_HOME") == str(home) for each in family):
                    yield process


def undisturbed(program: Program, train: list[str]) -> tuple[float, Spans]:
    """Run to the end; return the seconds it took, and when a process of each kind was seen first and last."""
    process, began = program.start(*train), time.monotonic()
    spans: Spans = {}
    while process.poll() is None:
        for kind in KINDS:
            if any(living(program.home, kind)):
                now = time.monotonic() - began
                spans[kind] = spans.get(kind, (now, now))[0], now
        time.sleep(0.05)
    assert process.returncode == 0, program.told()
    return time.monotonic() - began, spans


def kill_one(program: Program, train: list[str], kind: str, after_s: float) -> tuple[int, str, bool]:
    """Start the training, kill a process of a kind at a moment or once there is one.

    Return its code, a text, and whether there was one.
    """
    process, began = program.start(*train), time.monotonic()
    killed = ""
    while process.poll() is None and not killed:
        since_s = time.monotonic() - began
        if since_s >= after_s:
            for victim in living(program.home, kind):
                with contextlib.suppress(psutil.Error):
                    victim.kill()
                    killed = f"killed after {since_s:.1f} s"
                break
        time.sleep(0.02)
    code = process.wait()
    said = program.told().strip().splitlines()
    end = "went on" if code == 0 else f"exit {code}: {said[-1] if said else ''}"
    return code, f"{killed or 'none was there'}: {end}", bool(killed)


def untold(program: Program) -> int:
    """Send to MLflow what a killed reporter has not; return the number of events that are left."""
    (folder,) = (program.home / "runs").iterdir()
    program.run("sync", folder.name)
    return status(folder).untold


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("times", 5), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=[kind for kind in KINDS if kind not in ("rank", "actor")]
    )
    parser.add_argument("--set", action="append", default=[], help="a change of the recipe, KEY=VALUE")
    given = parser.parse_args()
    train = ["train", str(RECIPE), *(word for change in given.set for word in ("--set", change))]
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(os.path.realpath(folder))
        blank = new_home(root, "blank", None)
        assert blank.run("setup")[0] == 0
        assert blank.run("ingest", "heldout.jsonl")[0] == 0
        spans: Spans = {}
        wanted, num_same = dict[str, bytes](), 0
        for reports in sorted({kind == "reporter" for kind in given.kinds}):  # with its reporter a training is slower
            calm = new_home(root, f"calm-{reports}", blank.home)
            calm.reports = reports
            whole_s, seen = undisturbed(calm, train)
            spans |= {kind: seen[kind] for kind in given.kinds if (kind == "reporter") == reports}
            wanted = calm.manifests()
            print(f"seed {given.seed}, undisturbed: {whole_s:.0f} s, {len(wanted)} artifacts", flush=True)
        left = [kind for kind in reversed(given.kinds) for _ in range(given.times)]
        number = 0
        while left:
            kind, number = left[-1], number + 1
            program = new_home(root, f"killed-{number}", blank.home)
            program.reports = kind == "reporter"
            code, ended, killed = kill_one(program, train, kind, rng.uniform(*spans[kind]))
            if killed:
                left.pop()
            repeats = 0
            while code != 0 and repeats < MAX_REPEATS:
                code, repeats = program.run(*train)[0], repeats + 1
            same = program.manifests() == wanted
            num_same += same
            unsent = f", {untold(program)} events not sent" if program.reports else ""
            print(f"{number}: {kind} {ended}: {'same' if same else 'DIFFERENT'}{unsent}", flush=True)
        print(f"{num_same} of {number} the same")
        sys.exit(num_same != number)


if __name__ == "__main__":
    main()
