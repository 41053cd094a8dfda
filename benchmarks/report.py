"""What `gradus report` and `gradus browse` take for a training of 100,000 rollouts.

    python benchmarks/report.py                        # 20 rounds of 625 groups of 8
    python benchmarks/report.py --rounds 5 --groups 20
    python benchmarks/report.py --home FOLDER          # keep the run, as `bench-0`

Writes a training by hand through the store: rollouts with tokens and log-probs, scores, checkpoints with their table of
rows, evaluations, a journal. Prints wall and CPU seconds and peak memory of `gradus report`, and the seconds until the
first list of `gradus browse` is drawn, imports left out.
"""

import argparse
import asyncio
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from gradus.data.intervals import share_interval
from gradus.data.lake.manifest import REPORT
from gradus.data.lake.schema import TABLES, UPDATES, cast_to_schema, sample_key
from gradus.data.lake.store import Ref, Store
from gradus.data.metrics import pass_at_k
from gradus.data.package import package_file
from gradus.data.records import JsonObject
from gradus.flows.console.browser.lists import Browser
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.run_rows import open_run
from gradus.tasks.runs.journal import Journal

ROOT = Path(__file__).parents[1]
RUN = "bench-0"
TOKENIZER = package_file("data/samples/policy/tokenizer.json")
TEXTS = 400
HELD_OUT = 144


class Writer:
    """Writes artifacts and the journal of one training."""

    def __init__(self, home: Home, tokens: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.store = Store(home.lake)
        folder = home.runs / RUN
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"verb": "train", "seed": 0, "recipe": {"name": "bench"}}))
        self.journal = Journal(folder)
        self.journal.run_started({"run": RUN, "verb": "train"})
        tokenizer = Tokenizer.from_file(str(TOKENIZER))
        lengths = self.rng.integers(tokens // 2, tokens * 3 // 2, TEXTS)
        self.tokens = [self.rng.integers(3, tokenizer.get_vocab_size(), length).tolist() for length in lengths]
        self.texts = [tokenizer.decode(ids) for ids in self.tokens]
        self.logprobs = [(-self.rng.exponential(0.7, len(ids))).astype(np.float32) for ids in self.tokens]

    def ref(self, table: str, *name: object) -> Ref:
        """A name for an artifact."""
        return Ref(table, hashlib.sha256(repr(name).encode()).hexdigest()[:32])

    def table(self, ref: Ref, columns: dict[str, Any], parents: dict[str, list[str]], report: JsonObject) -> Ref:
        """Write a table of one shard."""
        writer = self.store.writer(ref)
        writer.write_table(cast_to_schema(pa.table(columns), TABLES[ref.table]))
        writer.write_file(REPORT, json.dumps(report).encode())
        writer.commit(parents=parents)
        return ref

    def checkpoint(self, at: int, rows: pa.Table | None) -> Ref:
        """A checkpoint without weights: its tokenizer, and what the update did with its rows."""
        ref = self.ref("checkpoints", at)
        writer = self.store.writer(ref)
        writer.copy_file("tokenizer.json", TOKENIZER)
        if rows is not None:
            out = io.BytesIO()
            pq.write_table(cast_to_schema(rows, UPDATES), out)
            writer.write_file("rows.parquet", out.getvalue())
        writer.commit()
        return ref

    def stage(self, stage: str, at: int, purpose: str, output: Ref, report: Any) -> None:
        """A finished attempt in the journal."""
        label = {"stage": stage, "round": at, "purpose": purpose, "output": str(output)}
        attempt = self.journal.stage_started(**label, config={}, inputs={})
        self.journal.stage_finished(attempt, status="finished", seconds=float(at + len(stage)), report=report)

    def batch(self, at: int, purpose: str, problems: Ref, names: list[str], n: int, skill: float) -> pa.Table:
        """Rollouts and scores of some problems; return what an update says of the rows."""
        num = len(names) * n
        rollouts, scores = (self.ref(table, at, purpose) for table in ("rollouts", "scores"))
        which = self.rng.integers(0, TEXTS, num)
        problem = np.repeat(names, n)
        group = [f"{name}@r{at}h0" for name in problem]
        sample = np.tile(np.arange(n), len(names))
        ids = [sample_key(rollouts.digest, f"{g}:{s}") for g, s in zip(group, sample, strict=True)]
        hard = np.repeat([int(name[1:]) % 100 / 100 for name in names], n)
        correct = self.rng.random(num) < np.clip(skill + 0.5 - hard, 0.02, 0.98)
        policy = self.ref("checkpoints", max(0, at - 1) if purpose == "train" else at)
        columns = {
            "rollout_id": ids, "problem_id": problem, "group_id": group, "sample": sample.astype(np.int32),
            "round": np.full(num, at, np.int32), "completion": [self.texts[i] for i in which],
            "completion_tokens": [self.tokens[i] for i in which], "logprobs": [self.logprobs[i] for i in which],
            "finish_reason": ["stop"] * num, "hint_level": np.zeros(num, np.int32),
            "policy": [policy.digest] * num, "temperature": np.ones(num),
        }  # fmt: skip
        self.table(rollouts, columns, {"problems": [str(problems)]}, {})
        reward = correct.astype(float)
        judged = {
            "rollout_id": ids, "problem_id": problem, "reward": reward, "correct": correct,
            "components": pa.array([[("numeric", r)] for r in reward], pa.map_(pa.string(), pa.float64())),
            "extracted": ["34"] * num, "outcome": np.where(correct, "correct", "wrong"),
            "verifier": ["numeric@1"] * num,
        }  # fmt: skip
        metrics = {"reward/mean": float(reward.mean())}
        self.table(scores, judged, {"rollouts": [str(rollouts)], "problems": [str(problems)]}, {"metrics": metrics})
        self.stage("rollout", at, purpose, rollouts, {})
        self.stage("score", at, purpose, scores, {"metrics": metrics})
        group_mean = np.repeat(reward.reshape(-1, n).mean(axis=1), n)
        return pa.table(
            {"rollout_id": ids, "problem_id": problem, "reward": reward, "advantage": reward - group_mean,
             "weight": np.ones(num), "mismatch": self.rng.exponential(1e-3, num)}
        )  # fmt: skip

    def evaluation(self, at: int, problems: Ref, names: list[str], skill: float) -> None:
        """An evaluation with its rollouts."""
        rows = self.batch(at, "eval", problems, names, 8, skill)
        k = rows["reward"].to_numpy().reshape(-1, 8).sum(axis=1).astype(int)
        n = np.full(len(names), 8)
        ref = self.ref("evaluations", at)
        columns = {
            "checkpoint": ["x"] * len(names),
            "suite": ["heldout"] * len(names),
            "problem_id": names,
            "n": n,
            "k": k,
        }
        found = {i: share_interval(pass_at_k(n, k, i)[None]) for i in (1, 8)}
        summary = {"suite": "heldout", "pass_at": {str(i): each.as_dict() for i, each in found.items()}}
        self.table(ref, columns, {}, {"summary": summary})
        self.stage("evaluate", at, "eval", ref, {"summary": summary})


def write_run(home: Home, rounds: int, groups: int, n: int, tokens: int) -> None:
    writer = Writer(home, tokens)
    num_problems = 2 * groups
    train, held_out = writer.ref("problems", "train"), writer.ref("problems", "heldout")
    names, others = [f"p{i}" for i in range(num_problems)], [f"h{i}" for i in range(HELD_OUT)]
    for ref, each in ((train, names), (held_out, others)):
        question = [f"State the final answer to the following arithmetic problem: {name[1:]} + 1 =" for name in each]
        writer.table(ref, {"problem_id": each, "question": question, "answer": ["34"] * len(each)}, {}, {})
    writer.checkpoint(0, None)
    writer.evaluation(0, held_out, others, 0.2)
    for at in range(1, rounds + 1):
        chosen = [names[i] for i in sorted(writer.rng.choice(num_problems, groups, replace=False))]
        rows = writer.batch(at, "train", train, chosen, n, 0.2 + 0.5 * at / rounds)
        steps = [{"policy/entropy": 0.5 / at + 0.01 * s, "policy/grad_norm": 0.3 + 0.1 * s, "policy/kl_old": 1e-3 * s}
                 for s in range(4)]  # fmt: skip
        report = {"steps": steps, "metrics": {"mismatch/kl": 1e-4 * at, "mismatch/logp_diff_mean": 1e-3}}
        writer.stage("update", at, "train", writer.checkpoint(at, rows), report)
        writer.evaluation(at, held_out, others, 0.2 + 0.5 * at / rounds)
    writer.journal.run_finished(status="finished")


async def look(home: Home) -> None:
    """Open the run in a terminal of 80 columns and press some keys."""
    began, cpu = time.perf_counter(), time.process_time()
    with open_run(home, RUN, print) as rows:
        app = Browser(rows)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            cpu_s = time.process_time() - cpu
            print(f"browse, the first list       {time.perf_counter() - began:7.2f} s, {cpu_s:.2f} s of CPU")
            for key, what in (("2", "problems"), ("3", "groups"), ("o", "ordered"), ("end", "end"), ("enter", "group")):
                began = time.perf_counter()
                await pilot.press(key)
                await pilot.pause()
                print(f"browse, {what:20} {time.perf_counter() - began:7.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--groups", type=int, default=625)
    parser.add_argument("--n", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Home((options.home or Path(name)).resolve())
        write_run(home, options.rounds, options.groups, options.n, options.tokens)
        kept = {**os.environ, "GRADUS_HOME": str(home.root), "PYTHONPATH": str(ROOT / "src")}
        rollouts = sum(p.stat().st_size for p in home.lake.glob("rollouts/*/*.parquet"))
        print(f"{options.rounds * options.groups * options.n:,} rollouts of training, {rollouts / 1e6:.0f} MB")
        out = home.root / "report.html"
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gradus", "report", RUN, "--out", str(out)], env=kept, check=True)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s, peak_mb = spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 1000
        wall_s = time.perf_counter() - started
        print(f"gradus report                {wall_s:7.2f} s, {cpu_s:.2f} s of CPU, peak {peak_mb:.0f} MB")
        print(f"report.html                  {out.stat().st_size / 1e6:7.2f} MB")
        asyncio.run(look(home))


if __name__ == "__main__":
    main()
