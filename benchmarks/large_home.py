"""Cost of reading in a home of 10,000 artifacts: seconds and peak memory of `sql`, `runs` and `show`.

    python benchmarks/large_home.py                    # 100 runs of 20 rounds of five artifacts
    python benchmarks/large_home.py --runs 10 --turns 3
    python benchmarks/large_home.py --home FOLDER      # keep the home, or measure one that is there

Writes one artifact of each table through the store; the others are hard links to its files under names and manifests of
their own. Prints the median of `--turns` processes, the first of them apart: what it keeps, the others read. They have
their modules compiled, as where `PYTHONDONTWRITEBYTECODE` is not set. A process begins as a copy of this one, so the
memory of this one is the least that is seen.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from gradus.data.files import replace_file
from gradus.data.lake.manifest import FILE_NAME, REPORT, FileEntry, Manifest, identity_digest
from gradus.data.lake.schema import TABLES, cast_to_schema
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject
from gradus.flows.session import RunSpec, guard
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runs.listing import done_of

ROOT = Path(__file__).parents[1]
ROWS = 8
CONFIG: JsonObject = {f"setting_{index}": 0.25 * index for index in range(24)}
QUERIES = {
    "count of rollouts": "select count(*) from rollouts",
    "count of rollouts, one run": ("select count(*) from rollouts", "run-0"),
    "mean reward by round": "select round, purpose, count(*), avg(reward) from samples group by all order by all",
    "mean reward by round, one run": (
        "select round, purpose, count(*), avg(reward) from samples group by all order by all",
        "run-0",
    ),
    "count of plans": "select count(*) from plan",
    "runs by status": "select status, count(*) from runs group by all",
}


class Writer:
    """Writes artifacts that share the bytes of one of their table, and journals that name them."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.store = Store(home.lake)
        self._first: dict[str, tuple[FileEntry, ...]] = {}
        problems = {"problem_id": ["a", "b"], "question": ["1 + 1 =", "2 + 2 ="], "answer": ["2", "4"]}
        self.problems = self.store.put("problems", pa.table(problems))

    def artifact(self, stage: str, table: str, columns: dict[str, Any] | None, name: str, **parents: Ref) -> Ref:
        """Make an artifact as a stage does, the first of its table from rows and the others from its files."""
        identity: JsonObject = {"stage": stage, "name": name, "config": CONFIG}
        ref = Ref(table, identity_digest(identity))
        named = {role: [str(each)] for role, each in parents.items()}
        if table not in self._first:
            writer = self.store.writer(ref)
            if columns is None:
                writer.write_file("policy.bin", b"0" * 1000)
            else:
                writer.write_table(cast_to_schema(pa.table(columns), TABLES[table]))
            writer.write_file(REPORT, b'{"metrics": {"perf/compute_s": 1.0}, "summary": {"rows": 8}}')
            writer.commit(identity=identity, config=CONFIG, parents=named)
            self._first[table] = writer.entries
            self._source = {**getattr(self, "_source", {}), table: self.store.path(ref)}
            return ref
        folder, source = self.store.path(ref), self._source[table]
        folder.mkdir(parents=True)
        for entry in self._first[table]:
            os.link(source / entry.name, folder / entry.name)
        manifest = Manifest(
            table=table,
            digest=ref.digest,
            schema_version=Manifest.model_validate_json((source / FILE_NAME).read_bytes()).schema_version,
            identity=identity,
            config=CONFIG,
            parents=named,
            files=self._first[table],
        )
        replace_file(folder / FILE_NAME, manifest.sealed().to_bytes())
        return ref

    def run(self, name: str, rounds: int) -> None:
        """A training whose rounds have five artifacts each."""
        folder = self.home.runs / name
        folder.mkdir(parents=True)
        guard(folder, RunSpec(name, "train", body={"recipe": {"name": "bench", "rounds": rounds, **CONFIG}}))
        journal = Journal(folder)
        journal.run_started({"run": name, "verb": "train"})
        policy = self.artifact("warmstart", "checkpoints", None, name)
        for at in range(1, rounds + 1):
            plan = self._stage(journal, "curate", "plan", _plan(), at, problems=self.problems)
            rollouts = self._stage(
                journal, "rollout", "rollouts", _rollouts(), at, plan=plan, problems=self.problems, policy=policy
            )
            scores = self._stage(journal, "score", "scores", _scores(), at, rollouts=rollouts, problems=self.problems)
            self._stage(journal, "difficulty", "difficulty", _difficulty(), at, rollouts=rollouts, scores=scores)
            policy = self._stage(
                journal, "update", "checkpoints", None, at, rollouts=rollouts, scores=scores, policy=policy
            )
        journal.run_finished(status="finished", so_far=done_of(folder, self.store))

    def _stage(
        self, journal: Journal, stage: str, table: str, columns: dict[str, Any] | None, at: int, **inputs: Ref
    ) -> Ref:
        ref = self.artifact(stage, table, columns, f"{journal.run} {at}", **inputs)
        named = {role: [str(each)] for role, each in inputs.items()}
        attempt = journal.stage_started(
            stage=stage, round=at, purpose="train", output=str(ref), config=CONFIG, inputs=named
        )
        metrics = {f"{stage}/figure_{index}": 0.5 for index in range(8)}
        folder = str(Store(self.home.lake).path(ref))
        journal.stage_finished(attempt, status="finished", seconds=1.0, report={"metrics": metrics}, folder=folder)
        return ref


def _plan() -> dict[str, Any]:
    return {"problem_id": ["a", "b"], "group_id": ["a", "b"], "n": [4, 4]}


def _rollouts() -> dict[str, Any]:
    return {
        "rollout_id": [f"{name}:{sample}" for name in "ab" for sample in range(4)],
        "problem_id": [name for name in "ab" for _ in range(4)],
        "group_id": [name for name in "ab" for _ in range(4)],
        "sample": list(range(4)) * 2,
        "completion": ["a completion of some length"] * ROWS,
        "completion_tokens": [[1, 2, 3, 4]] * ROWS,
        "logprobs": [[-0.5] * 4] * ROWS,
        "finish_reason": ["stop"] * ROWS,
    }


def _scores() -> dict[str, Any]:
    ids = _rollouts()
    reward = [1.0, 0.0] * (ROWS // 2)
    return {"rollout_id": ids["rollout_id"], "problem_id": ids["problem_id"], "reward": reward}


def _difficulty() -> dict[str, Any]:
    return {"problem_id": ["a", "b"], "n": [4, 4], "k": [2, 2]}


def measured(home: Path, *arguments: str) -> tuple[float, float, float]:
    """Return wall seconds, CPU seconds and peak resident megabytes of one process."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"GRADUS_HOME": str(home)}
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "gradus", *arguments], env=kept, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"gradus {' '.join(arguments)} failed")
    return time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--home", type=Path, default=None)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as name:
        root = options.home or Path(name)
        if not (root / "runs").is_dir():
            writer = Writer(Home(root))
            for number in range(options.runs):
                writer.run(f"run-{number}", options.rounds)
        num = sum(1 for _ in (root / "lake").glob(f"*/*/{FILE_NAME}"))
        print(f"{num:,} artifacts of {options.runs} runs\n")
        print(f"{'':34} {'first, s':>9} {'median, s':>10} {'CPU, s':>7} {'peak, MB':>9}")
        for title, query in QUERIES.items():
            text, *run = (query,) if isinstance(query, str) else query
            report(title, root, options.turns, "sql", text, *(["--run", *run] if run else []))
        report("gradus runs", root, options.turns, "runs")
        report("gradus show", root, options.turns, "show", "run-0")
        report("gradus --help", root, options.turns, "--help")


def report(title: str, home: Path, turns: int, *arguments: str) -> None:
    """Print the first turn, the medians of the others, and the largest memory."""
    found = [measured(home, *arguments) for _ in range(turns + 1)]
    wall, cpu = (statistics.median(each[column] for each in found[1:]) for column in (0, 1))
    print(f"{title:34} {found[0][0]:9.2f} {wall:10.2f} {cpu:7.2f} {max(each[2] for each in found):9.0f}")


if __name__ == "__main__":
    main()
