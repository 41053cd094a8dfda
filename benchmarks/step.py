"""A whole training step, generation and update, of Gradus and of TRL's GRPOTrainer, in turns.

    python benchmarks/step.py [--cases bundled:0,bundled:3,larger:3] [--prompts 64] [--group 8] [--max-tokens 96]
                              [--rounds 5] [--threads 2] [--micros 64,512]

Gradus: the stages rollout, score and update as a worker executes them, one after the other, each with its artifact
written, fsynced and committed: Parquet, scores judged in a process of their own, a checkpoint with the optimiser's
state. TRL 1.16: one step of `GRPOTrainer.train` in an environment of its own (trl_generation.py makes it), with the
faster of the sizes of micro-batch tried; nothing is written (trl_child.py). Both: float32, groups of 8, equal
prompts, one optimiser step over all rows, the policy of the step before, a reward that is the parity of a completion's
length. Not part of either: Prefect, MLflow and curation (benchmarks/overhead.py), evaluation.
A case is a policy (bundled; larger: 3.4 million random parameters) and how many worked problems stand before each
question: 0 makes prompts of 11 tokens, 3 of 110. Tokens sampled differ by chance; `a token` compares seconds by them.
"""

import argparse
import platform
import statistics
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import rollout  # noqa: E402 - the checkout comes first
import torch  # noqa: E402
from trl_generation import Trl, trl_python  # noqa: E402

from gradus.data.lake.store import Ref, Store  # noqa: E402
from gradus.data.records import JsonObject  # noqa: E402
from gradus.models.policy import load_policy, prompt_text  # noqa: E402
from gradus.tasks.config.learning import UpdateConfig  # noqa: E402
from gradus.tasks.config.rollout import RolloutConfig  # noqa: E402
from gradus.tasks.config.score import ScoreConfig  # noqa: E402
from gradus.tasks.host.processes import Warm  # noqa: E402
from gradus.tasks.runs.records import Report  # noqa: E402
from gradus.tasks.runtime.calls import Job, execute  # noqa: E402

REWARD = """
def parity(rows):
    return [float(len(row["completion"]) % 2) for row in rows]
"""
PARTS = ("rollout", "score", "update")


class Ours:
    """The stages in this process; what they load stays warm between steps."""

    def __init__(self, folder: Path, policy: Path, given: argparse.Namespace, num_examples: int) -> None:
        num_rows = given.prompts * given.group
        self._store, self._inputs = rollout.house(folder, num_rows, policy, given.group, given.max_tokens, num_examples)
        reward = folder / "parity.py"
        reward.write_text(REWARD)
        self._score = ScoreConfig.model_validate({"rewards": [{"name": f"{reward}:parity"}]})
        self._warm, self._step = Warm(), 0
        self.parts: list[dict[str, float]] = []

    def step(self) -> tuple[float, int]:
        """Seconds of one step, and the completion tokens that it sampled."""
        number, inputs = self._step, self._inputs
        started = time.perf_counter()
        rollouts = [f"rollouts/{number:032x}"]
        sampled = self._run("rollout", rollouts, inputs, RolloutConfig(dtype="float32"))
        scores = [f"scores/{number:032x}"]
        self._run("score", scores, {"rollouts": rollouts, "problems": inputs["problems"]}, self._score)
        policy = [f"checkpoints/{number:032x}"]
        update = UpdateConfig(lr=1e-6, warmup_steps=0)
        given = {"rollouts": rollouts, "scores": scores, "policy": inputs["policy"]}
        self._run("update", policy, given, update)
        self._inputs = {**inputs, "policy": policy}
        self._step += 1
        tokens = sampled.get("summary", {})["tokens"]
        assert isinstance(tokens, int)
        return time.perf_counter() - started, tokens

    def _run(self, stage: str, output: list[str], inputs: dict[str, list[str]], config: Any) -> Report:
        settings: JsonObject = config.model_dump(mode="json")
        started = time.perf_counter()
        job = Job(stage, str(self._store.root), output[0], inputs, settings, seed=self._step)
        report = execute(vars(job), self._warm, lambda *_: None)
        if stage == PARTS[0]:
            self.parts.append({})
        self.parts[-1][stage] = time.perf_counter() - started
        return report

    def prompts(self, policy: Path) -> tuple[list[str], list[int]]:
        """Texts of the planned problems, and how many tokens the first step made of each."""
        names = self._column("plan", "problem_id")
        questions = dict(zip(self._column("problems", "problem_id"), self._column("problems", "question"), strict=True))
        tokenizer = load_policy(policy).tokenizer
        lengths = self._store.read(Ref("rollouts", f"{0:032x}"), ["prompt_tokens"]).column(0)
        return [prompt_text(tokenizer, questions[name]) for name in names], [len(each) for each in lengths]

    def _column(self, role: str, name: str) -> list[Any]:
        store: Store = self._store
        return store.read(Ref.parse(self._inputs[role][0]), [name]).column(name).to_pylist()


def theirs(policy: Path, texts: list[str], given: argparse.Namespace) -> tuple[Trl, int]:
    """TRL's process with the size of micro-batch that was fastest, each tried twice."""
    found: list[tuple[float, int, Trl]] = []
    for micro in map(int, given.micros.split(",")):
        asked = {
            "mode": "step",
            "policy": str(policy),
            "prompts": texts,
            "group": given.group,
            "max_tokens": given.max_tokens,
            "micro": micro,
            "threads": given.threads,
        }
        trl = Trl(trl_python(), asked)
        seconds = [trl.ask({})["seconds"] for _ in range(2)]
        found.append((seconds[1], micro, trl))
    found.sort(key=lambda each: each[0])
    for _, _, slower in found[1:]:
        slower.close()
    return found[0][2], found[0][1]


def row(case: str, given: argparse.Namespace) -> str:
    """Measure one line of the table."""
    name, examples = case.split(":")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        policy = rollout.policy_of(name, folder)
        ours = Ours(folder, policy, given, int(examples))
        ours.step()
        texts, prompt_tokens = ours.prompts(policy)
        trl, micro = theirs(policy, texts, given)
        pairs = []
        for _ in range(given.rounds):
            own, other = ours.step(), trl.ask({})
            pairs.append((*own, other["seconds"], other["tokens"]))
        trl.close()
    seconds = sorted(other / own for own, _, other, _ in pairs)
    by_token = statistics.median((other / sampled) / (own / mine) for own, mine, other, sampled in pairs)
    parts = " + ".join(f"{statistics.median(each[part] for each in ours.parts[1:]):.2f}" for part in PARTS)
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    cells = (
        name,
        f"{statistics.mean(prompt_tokens):.0f}",
        f"{medians[1]:,.0f} / {medians[3]:,.0f}",
        f"{medians[0]:.2f} ({parts})",
        f"{medians[2]:.2f} ({micro})",
        f"{statistics.median(seconds):.2f} ({seconds[0]:.2f} to {seconds[-1]:.2f})",
        f"{by_token:.2f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="bundled:0,bundled:3,larger:3", help="policy:worked problems, ...")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--micros", default="64,512", help="rows of TRL's micro-batch to try")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{platform.processor() or platform.machine()}, {given.threads} threads, torch {version('torch')}")
    heads = "policy|prompt|tokens: Gradus / TRL|Gradus, s (parts)|TRL, s (micro-batch)|TRL / Gradus|a token"
    print(f"|{heads}|\n" + "|---" * 7 + "|")
    for case in given.cases.split(","):
        print(row(case, given), flush=True)


if __name__ == "__main__":
    main()
