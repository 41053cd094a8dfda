"""Tokens per second of each engine, called directly and through the stage; rows per second of the stage itself.

    python benchmarks/rollout.py [--size bundled|larger] [--rows 2048] [--rounds 3] [--no-vllm] [--stub-rows 1000000]

An engine alone and through the stage (Parquet, seeds, text and all) are measured in turns on the same requests, round
after round in one process. Printed are the medians: of both, of each round's ratio, and of the share of the stage's
time in which it waited for the engine. Both sides of that share are of one run, so it does not follow the machine's ups
and downs. The policy is the bundled one or a larger of random weights, in the number format of each engine.
The last lines run the stage over an engine that answers at once.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

from gradus.data.lake.store import Ref, Store  # noqa: E402
from gradus.data.worked import worked_text  # noqa: E402 - the checkout comes first
from gradus.models.engines.base import Engine, Finished, OnTokens, Request  # noqa: E402
from gradus.models.policy import new_policy  # noqa: E402
from gradus.models.tiny_tokenizer import tiny_tokenizer  # noqa: E402
from gradus.tasks.config.rollout import RolloutConfig, VllmConfig  # noqa: E402
from gradus.tasks.host.processes import Warm  # noqa: E402
from gradus.tasks.runtime.calls import Job, execute  # noqa: E402
from gradus.tasks.stages.rollout import stage  # noqa: E402

POLICY = ROOT / "data" / "samples" / "policy"
SIZES = ("bundled", "larger")
TRAIN = ROOT / "data" / "samples" / "train.parquet"
GROUP = 8
MAX_TOKENS = 96
ENDING = "{solution}\n#### {answer}"


class Stub:
    """Answers every request at once with the same hundred tokens."""

    name, reproducible, remarks = "stub", True, ()

    def __init__(self) -> None:
        self.answer = [5] * 100, [-0.5] * 100

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """One answer a request."""
        for index in range(len(requests)):
            yield Finished(index, *self.answer, "stop")
            if on_tokens is not None:
                on_tokens(100 * index)


def house(
    folder: Path,
    num_rows: int,
    policy: Path = POLICY,
    group: int = GROUP,
    max_tokens: int = MAX_TOKENS,
    num_examples: int = 0,
) -> tuple[Store, dict[str, list[str]]]:
    """A lake with a policy and a plan of N rollouts of the bundled problems."""
    store = Store(folder / "lake")
    problems = store.put("problems", behind_examples(pa.parquet.read_table(TRAIN), num_examples))
    names = store.read(problems, ["problem_id"]).column("problem_id").to_pylist()
    groups = [names[i % len(names)] for i in range(num_rows // group)]
    plan = pa.table(
        {
            "problem_id": groups,
            "group_id": [f"{name}@{i}" for i, name in enumerate(groups)],
            "n": pa.array([group] * len(groups), pa.int32()),
            "max_tokens": pa.array([max_tokens] * len(groups), pa.int32()),
        }
    )
    inputs = {"plan": store.put("plan", plan), "problems": problems, "policy": store.adopt(policy)}
    return store, {role: [str(ref)] for role, ref in inputs.items()}


def behind_examples(problems: pa.Table, number: int) -> pa.Table:
    """Every question behind N worked problems of the same table."""
    rows = problems.to_pylist()
    worked = [f"{row['question']}\n{worked_text(ENDING, row['solution'], row['answer'])}\n" for row in rows]
    before = ["".join(worked[(place + i) % len(rows)] for i in range(1, number + 1)) for place in range(len(rows))]
    questions = [examples + row["question"] for examples, row in zip(before, rows, strict=True)]
    return problems.set_column(problems.column_names.index("question"), "question", pa.array(questions))


def through(store: Store, inputs: dict[str, list[str]], config: RolloutConfig, warm: Warm, number: int) -> float:
    """Tokens per second of the whole stage."""
    output = f"rollouts/{number:032x}"
    job = vars(Job("rollout", str(store.root), output, inputs, config.model_dump(mode="json"), seed=number))
    started = time.perf_counter()
    report = execute(job, warm, lambda *_: None)
    return report["summary"]["tokens"] / (time.perf_counter() - started)


def directly(engine: Engine, shards: Sequence[Sequence[Request]]) -> float:
    """Tokens per second of the engine alone, asked what the stage asks it, shard by shard."""
    started = time.perf_counter()
    num_tokens = sum(len(finished.tokens) for shard in shards for finished in engine.generate(shard))
    return num_tokens / (time.perf_counter() - started)


class Watched:
    """Seconds waited for an engine's answers, beside the requests made."""

    def __init__(self, engine: Engine) -> None:
        self.asked: list[list[Request]] = []
        self.waited_s = 0.0
        self._generate = engine.generate
        engine.generate = self.generate

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        """The engine's answers, each timed."""
        self.asked.append(list(requests))
        answers = iter(self._generate(requests, on_tokens))
        while True:
            started = time.perf_counter()
            finished = next(answers, None)
            self.waited_s += time.perf_counter() - started
            if finished is None:
                return
            yield finished


def policy_of(size: str, folder: Path) -> Path:
    """The bundled policy, or a Llama of 3.4 million random parameters with its tokenizer, made in that folder."""
    if size == "bundled":
        return POLICY
    made = new_policy(tiny_tokenizer(), width=256, layers=4, heads=4, max_positions=256, seed=0)
    for part in (made.model, made.tokenizer):
        part.save_pretrained(folder / size)
    return folder / size


def measure(config: RolloutConfig, num_rows: int, rounds: int, size: str) -> dict[str, float]:
    """Medians of both, in turns; the first round warms up and is not counted."""
    with tempfile.TemporaryDirectory() as scratch:
        store, inputs = house(Path(scratch), num_rows, policy_of(size, Path(scratch)))
        warm = Warm()
        opened: list[tuple[Engine, Watched]] = []
        opening = stage.open_engine

        def spy(*arguments: Any) -> Any:
            engine, side = opening(*arguments)
            opened.append((engine, Watched(engine)))
            return engine, side

        stage.open_engine = spy
        through(store, inputs, config, warm, 0)
        asked = opened[0][1].asked
        found: dict[str, list[float]] = {"alone": [], "through": [], "ratio": [], "share": []}
        for number in range(1, rounds + 1):
            engine = opened[-1][0]
            del engine.generate  # pyright: ignore[reportAttributeAccessIssue]
            found["alone"].append(directly(engine, asked))
            started = time.perf_counter()
            found["through"].append(through(store, inputs, config, warm, number))
            found["share"].append(opened[-1][1].waited_s / (time.perf_counter() - started))
            found["ratio"].append(found["through"][-1] / found["alone"][-1])
        stage.open_engine = opening
        opened[-1][0].close()
        return {name: statistics.median(values) for name, values in found.items()}


def stub(num_rows: int) -> dict[str, float]:
    """Rows per second of the stage over an engine that answers at once, and the memory that grows meanwhile."""
    with tempfile.TemporaryDirectory() as scratch:
        store, inputs = house(Path(scratch), num_rows)
        opening: Callable[..., Any] = stage.open_engine
        stage.open_engine = lambda *given: (Stub(), opening(*given)[1])
        config = RolloutConfig(shard_rows=4096)
        first = store.read(Ref.parse(inputs["plan"][0])).slice(0, 8192 // GROUP)
        small = {**inputs, "plan": [str(store.put("plan", first))]}
        through(store, small, config, {}, 1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        through(store, inputs, config, {}, 2)
        seconds = time.perf_counter() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return {"rows_per_s": num_rows / seconds, "grown_mib": grown / 1024}


def in_process(*arguments: str) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stub-rows", type=int, default=1_000_000)
    parser.add_argument("--no-vllm", action="store_true")
    parser.add_argument("--one", choices=["transformers", "vllm", "stub"])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", choices=SIZES, default="bundled")
    given = parser.parse_args()
    if given.one == "stub":
        print(json.dumps(stub(given.stub_rows)))
        return
    if given.one:
        vllm = VllmConfig(enforce_eager=True, max_num_seqs=256)
        config = RolloutConfig(engine=given.one, dtype=given.dtype, vllm=vllm)
        print(json.dumps(measure(config, given.rows, given.rounds, given.size)))
        return
    sizes = ["--rows", str(given.rows), "--rounds", str(given.rounds), "--size", given.size]
    print(f"{platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '-')}")
    print("| engine | tokens/s alone | through the stage | ratio | waiting for the engine |\n|---|---|---|---|---|")
    for engine in ("transformers", *(() if given.no_vllm else ("vllm",))):
        for dtype in ("float32", "bfloat16"):
            found = in_process("--one", engine, "--dtype", dtype, *sizes)
            speeds = f"{found['alone']:,.0f} | {found['through']:,.0f}"
            print(f"| {engine}, {dtype} | {speeds} | {found['ratio']:.3f} | {found['share']:.3f} |", flush=True)
    found = in_process("--one", "stub", "--stub-rows", str(given.stub_rows))
    print(f"{given.stub_rows:,} rollouts of 100 tokens from an engine that answers at once: ", end="")
    print(f"{found['rows_per_s']:,.0f} rows/s, memory grown by {found['grown_mib']:,.0f} MiB after the first 8,192")


if __name__ == "__main__":
    main()
