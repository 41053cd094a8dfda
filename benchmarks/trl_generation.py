"""Generation by TRL's GRPOTrainer beside the stage `rollout`: same model, prompts, group, limit, number of threads.

    python benchmarks/trl_generation.py [--size bundled|larger] [--prompts 64] [--group 8] [--max-tokens 96]
                                        [--examples 0] [--rounds 5] [--trl-python PATH] [--trl 256,sdpa,dynamic]

TRL runs in an environment of its own (`--trl-python`; otherwise `.venv-trl`, made from benchmarks/trl.txt) and in its
own fastest setting: float32, no gradient checkpointing, and of blocks (all sequences together, half, a quarter),
attention (sdpa, eager) and cache (dynamic, static) those that were fastest when each was tried twice; `--trl` names
them instead. Seen to be fastest with 512 sequences of the bundled policy: half of them together, sdpa, dynamic cache; a
static one took up to twice as long.
Both are warm processes that take their rounds in turns; the first of each is not counted. Timed of TRL is its
generation alone (see trl_child.py), of ours the whole stage, Parquet and text included. Tokens are counted alike, those
of the completions with their end token, and the token ids of all prompts must be equal.
The bundled problems have 8 to 17 prompt tokens; `--examples 3` puts three worked problems before each, as long as
prompts are in practice: TRL computes a prompt once for every completion, the stage once for its group.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import rollout  # noqa: E402 - the checkout comes first

from gradus.data.lake.store import Ref, Store  # noqa: E402
from gradus.models.policy import load_policy, prompt_text  # noqa: E402
from gradus.tasks.config.rollout import RolloutConfig  # noqa: E402
from gradus.tasks.host.processes import Warm  # noqa: E402

TRL = ROOT / ".venv-trl"
CHILD = ROOT / "benchmarks" / "trl_child.py"


def trl_python() -> Path:
    """Return the Python of TRL's environment, which is made if it is missing."""
    python = TRL / "bin" / "python"
    if not (TRL / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", TRL], check=True)
        pins = ROOT / "benchmarks" / "trl.txt"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "-r", pins], check=True)
        (TRL / ".installed").touch()
    return python


class Trl:
    """A process with TRL's trainer."""

    def __init__(self, python: Path, given: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [python, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.prompt_tokens: list[list[int]] = self.ask(given)

    def round(self, how: dict[str, Any], seed: int) -> float:
        """Tokens per second of one round."""
        found = self.ask({**how, "seed": seed})
        return found["tokens"] / found["seconds"]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request and return the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"TRL's process ended with {self._process.wait()}; run {CHILD.name} by hand to see why")
        return json.loads(line)


class Ours:
    """The stage in this process, its engine kept between rounds."""

    def __init__(self, folder: Path, policy: Path, given: argparse.Namespace) -> None:
        num_rows = given.prompts * given.group
        self._store, self._inputs = rollout.house(
            folder, num_rows, policy, given.group, given.max_tokens, given.examples
        )
        self._warm = Warm()

    def round(self, number: int) -> float:
        """Tokens per second of one round."""
        return rollout.through(self._store, self._inputs, RolloutConfig(dtype="float32"), self._warm, number)

    def prompts(self, policy: Path) -> tuple[list[str], list[list[int]]]:
        """Texts of the planned problems, and the token ids that round 0 made of them, one for each group."""
        names = self._column("plan", "problem_id")
        questions = dict(zip(self._column("problems", "problem_id"), self._column("problems", "question"), strict=True))
        made = self._store.read(Ref("rollouts", f"{0:032x}"), ["group_id", "prompt_tokens"])
        by_group = dict(zip(*(made.column(name).to_pylist() for name in made.column_names), strict=True))
        tokenizer = load_policy(policy).tokenizer
        texts = [prompt_text(tokenizer, questions[name]) for name in names]
        return texts, [by_group[group] for group in self._column("plan", "group_id")]

    def mean_tokens(self) -> float:
        """Completion tokens of round 0, on average."""
        made = self._store.read(Ref("rollouts", f"{0:032x}"), ["completion_tokens"])
        return statistics.mean(map(len, made.column("completion_tokens").to_pylist()))

    def _column(self, role: str, name: str) -> list[Any]:
        store: Store = self._store
        return store.read(Ref.parse(self._inputs[role][0]), [name]).column(name).to_pylist()


def fastest(trl: Trl, num_sequences: int, group: int) -> dict[str, Any]:
    """TRL's settings of the best of two rounds each."""
    blocks = sorted({max(group, num_sequences // part // group * group) for part in (1, 2, 4)})
    tried = itertools.product(blocks, ("sdpa", "eager"), ("dynamic", "static"))
    settings = [{"block": b, "attention": attention, "cache": cache} for b, attention, cache in tried]
    speeds = [max(trl.round(how, seed) for seed in (0, 1)) for how in settings]
    for speed, how in sorted(zip(speeds, settings, strict=True), key=lambda pair: -pair[0]):
        print(f"  TRL, {how}: {speed:,.0f} tokens/s", file=sys.stderr)
    return settings[speeds.index(max(speeds))]


def setting(text: str) -> dict[str, Any]:
    """Parse block, attention and cache from one argument."""
    block, attention, cache = text.split(",")
    return {"block": int(block), "attention": attention, "cache": cache}


def measure(
    folder: Path, given: argparse.Namespace
) -> tuple[dict[str, Any], tuple[float, float], list[float], list[float]]:
    """TRL's setting, mean tokens of prompts and completions, tokens per second of every round of both."""
    policy = rollout.policy_of(given.size, folder)
    ours = Ours(folder, policy, given)
    ours.round(0)
    texts, expected = ours.prompts(policy)
    request = {"mode": "generate", "policy": str(policy), "prompts": texts}
    request |= {"group": given.group, "max_tokens": given.max_tokens}
    trl = Trl(given.trl_python or trl_python(), request)
    if trl.prompt_tokens != expected:
        sys.exit("the two do not make the same tokens of the same prompts: nothing can be compared")
    how = given.trl or fastest(trl, given.prompts * given.group, given.group)
    trl.round(how, 0)
    theirs, stage = [], []
    for number in range(1, given.rounds + 1):
        theirs.append(trl.round(how, number))
        stage.append(ours.round(number))
    trl.close()
    return how, (statistics.mean(map(len, expected)), ours.mean_tokens()), theirs, stage


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=rollout.SIZES, default="bundled")
    parser.add_argument("--trl-python", type=Path)
    parser.add_argument("--trl", type=setting)
    for name, value in (("prompts", 64), ("group", 8), ("max-tokens", 96), ("examples", 0), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        how, lengths, theirs, stage = measure(Path(folder), given)
    ratios = [mine / other for mine, other in zip(stage, theirs, strict=True)]
    print(f"{platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS', '-')};")
    print(f"{given.size} policy, {given.prompts} prompts of {lengths[0]:.0f} tokens x {given.group}; completions of")
    print(f"{lengths[1]:.0f} tokens, at most {given.max_tokens}; TRL: {how}")
    print("| generation | tokens/s, median | slowest | fastest |\n|---|---|---|---|")
    for name, speeds in (("TRL 1.16, its generation alone", theirs), ("stage rollout, Parquet included", stage)):
        print(f"| {name} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f} | {max(speeds):,.0f} |")
    worst, best = min(ratios), max(ratios)
    print(f"| stage / TRL, round by round | {statistics.median(ratios):.2f} | {worst:.2f} | {best:.2f} |")


if __name__ == "__main__":
    main()
