"""Rounds whose sampler and trainer take turns on one GPU: seconds by part, and the most memory in use.

    python benchmarks/gpu_round.py [--sizes 0.5b,1.5b] [--rounds 3] [--ranks 1] [--places device,host,disk]
    python benchmarks/gpu_round.py --sizes tiny --device cpu --engine transformers --draw 2 --tokens 16

Trainings by the real program, with the recipe for GSM8K on one GPU: Qwen2.5 policies of random bfloat16 weights, vLLM
asleep during updates, groups of 8 whose completions have `--tokens` tokens. Each size is trained whole and by an
adapter; weights and optimiser wait on the GPU, in the host's memory and on disk between two updates. A row of
the table has medians over rounds but the first: sampling; what else a rollout takes (waking, the new weights and their
proof); the update; memory as nvidia-smi says it twice a second. `--ranks N` updates on N GPUs.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Any

import torch
from common import environment
from gpu_update import new_model

from gradus.models.tiny_tokenizer import tiny_tokenizer

REWARD = """
def taking_turns(rows):
    return [float(index % 2) for index, _ in enumerate(rows)]
"""
QUERY = """
select stage, round, name, value from metrics
where name in ('perf/compute_s', 'perf/tokens_per_s', 'length/mean') and round > 1 and purpose = 'train'
"""
METHODS = {"whole": [], "adapter": ["--set", "update.lora={rank=16, alpha=32}"]}
PLACES = ("device", "host", "disk")


def laid_out(home: Path, size: str) -> None:
    """Write a policy of random weights, problems and a reward."""
    new_model(size, torch.device("cpu")).save_pretrained(home / "policy")
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 4096
    tokenizer.save_pretrained(home / "policy")
    (home / "reward.py").write_text(REWARD)
    for name, first in (("train", 100), ("test", 900)):
        rows = [
            {"question": f"{i} + 1 =", "answer": str(i + 1), "solution": f"#### {i + 1}"}
            for i in range(first, first + 64)
        ]
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@contextmanager
def peak_of_memory() -> Generator[list[int]]:
    """A list of one number: the most MiB in use on the first GPU while it lasts; 0 without one."""
    most, over = [0], threading.Event()
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]

    def watch() -> None:
        while which("nvidia-smi") and not over.wait(0.5):
            most[0] = max(most[0], int(subprocess.check_output(command, text=True)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def gradus(home: Path, *words: str) -> Any:
    """Return the output of a command with --json."""
    command = [sys.executable, "-m", "gradus", *words, "--json"]
    ran = subprocess.run(command, cwd=home, env=environment(home), stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        sys.exit(f"gradus {' '.join(words)} ended with {ran.returncode}")
    return json.loads(ran.stdout)


def row(home: Path, size: str, method: str, place: str, given: argparse.Namespace) -> str:
    """Train for some rounds and return a line of the table."""
    settings = {
        "seed": str(1 + PLACES.index(place)),  # or nothing would be computed again
        "policy": "policy",
        "problems": "train.jsonl",
        "evaluate.problems": "test.jsonl",
        "evaluate.sample.max_tokens": "1",
        "score.rewards": '[{name="reward.py:taking_turns"}]',
        "rollout.engine": given.engine,
        "rollout.device": given.device,
        "rollout.max_truncated_frac": "1.0",
        "curate.draw": str(given.draw),
        "curate.sample.max_tokens": str(given.tokens),
        "escalate": "[]",
        "guards": "[]",
        "update.device": given.device,
        "update.launch.processes": str(given.ranks),
        "update.between_updates": place,
        "update.max_logp_diff": "100.0",
    }
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    run = f"{size}-{method}-{place}"
    with peak_of_memory() as most:
        gradus(
            home, "train", "qwen2.5-0.5b-gsm8k", "--rounds", str(given.rounds), "--run", run, *changes, *METHODS[method]
        )
    found: dict[str, list[float]] = {"sampling": [], "beside": [], "update": []}
    measured: dict[tuple[str, int], dict[str, float]] = {}
    for stage, round, name, value in gradus(home, "sql", QUERY, "--run", run, "--limit", "0")["rows"]:
        measured.setdefault((stage, round), {})[name] = value
    for (stage, _), values in measured.items():
        if stage == "update":
            found["update"].append(values["perf/compute_s"])
        elif stage == "rollout":
            sampling_s = given.draw * 8 * values["length/mean"] / values["perf/tokens_per_s"]
            found["sampling"].append(sampling_s)
            found["beside"].append(values["perf/compute_s"] - sampling_s)
    cells = (
        size,
        method,
        place,
        *(f"{statistics.median(each):.1f}" for each in found.values()),
        f"{most[0] / 1024:.1f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="0.5b,1.5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--draw", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    given = parser.parse_args()
    heads = "policy|trained|between updates|sampling, s|rest of a rollout, s|update, s|peak GiB"
    print(f"|{heads}|\n" + "|---" * 7 + "|")
    for size in given.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            laid_out(Path(folder), size)
            for method in METHODS:
                for place in given.places.split(","):
                    print(row(Path(folder), size, method, place, given), flush=True)


if __name__ == "__main__":
    main()
