"""One optimiser step of Gradus, of a plain padded loop and of TRL's GRPOTrainer on the same rows, in turns.

    python benchmarks/update.py [--cases bundled:11,small:2048] [--rounds 5] [--threads 2] [--without-trl]

Gradus: the step as the stage takes it, sequences end to end with shared prompts. Plain: what a first implementation
does, rows as they come, padded to the longest of all, a prompt as often as it has completions, logits of every place;
written below. TRL 1.16 in its own environment (trl_generation.py makes it): `compute_loss`, backward, clipping and its
optimiser, the faster of two sizes of micro-batch (trl_child.py). All in float32 with the same loss but for the
aggregation; the first step of each is not counted. Groups of 8; completions of 5 to `--completion` tokens, uniform;
random rewards; random weights but for the bundled policy.
Tokens counted are those of prompts and completions of every row without padding (the packed form computes fewer).
`arithmetic` is the ratio of those counts, the most that sharing prompts could save in layers whose cost is linear in
tokens; `of the peak` is 6 x parameters x tokens computed by Gradus, in a second of its fastest step, beside the best
rate of matrix products of 2048 x 2048 measured in the same process after every round.
Memory is what the first step of a new process adds to what it held before; TRL's with the smaller micro-batch.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

import common  # noqa: E402 - the checkout comes first
import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel  # noqa: E402
from trl_generation import Trl, trl_python  # noqa: E402

from gradus.models.objectives.aggregations.means import token_mean  # noqa: E402
from gradus.models.objectives.losses.clipped import clip  # noqa: E402
from gradus.models.objectives.objective import Advantage, Objective, Part, Term  # noqa: E402
from gradus.models.objectives.ragged import Ragged  # noqa: E402
from gradus.models.objectives.rows import Rows  # noqa: E402
from gradus.models.policy import load_policy  # noqa: E402
from gradus.models.training.learning_rows import learning_rows  # noqa: E402
from gradus.models.training.parallel import ALONE, Ranks, shard  # noqa: E402
from gradus.models.training.passes import Budget, divided  # noqa: E402
from gradus.models.training.settings import StepConfig  # noqa: E402
from gradus.models.training.state import TrainState  # noqa: E402
from gradus.models.training.update import Step  # noqa: E402

OBJECTIVE = Objective((Advantage(Part(lambda rows: rows["advantage"])),), (Term(Part(clip), Part(token_mean)),))
GROUP = 8
CASES = "bundled:11,bundled:110,small:11,small:64,small:512,small:2048"
POLICY = ROOT / "data" / "samples" / "policy"
ROWS, MICRO = 128, 16
"""Rows of a step, unless these are more than TOKENS; rows of a micro-batch of the plain loop, and TRL's smaller one."""
TOKENS = 20_000
SHAPES = {"small": (192, 6, 6, 512, 4096), "medium": (448, 8, 8, 1216, 16384)}
"""Hidden size, layers, heads, width of the middle layer, vocabulary: 3.4 M and 34 M parameters."""


def new_model(name: str) -> PreTrainedModel:
    """Return a model by name."""
    if name == "bundled":
        return load_policy(POLICY, "float32").model
    hidden, layers, heads, middle, vocabulary = SHAPES[name]
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=middle,
        vocab_size=vocabulary,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


def new_rollouts(prompt_tokens: int, completion_tokens: int, groups: int, vocabulary: int, group: int = GROUP) -> Rows:
    """Return groups of completions of 5 to `completion_tokens` tokens, uniform, to prompts of about one length."""
    rng = np.random.default_rng(0)
    num_rows = groups * group
    prompts = [rng.integers(2, vocabulary, prompt_tokens + int(rng.integers(-1, 2))).tolist() for _ in range(groups)]
    completions = [
        rng.integers(2, vocabulary, int(rng.integers(5, completion_tokens + 1))).tolist() for _ in range(num_rows)
    ]
    reward = torch.from_numpy(rng.integers(0, 2, num_rows).astype(np.float64))
    return learning_rows(
        prompts=Ragged.of([prompts[i // group] for i in range(num_rows)]),
        completions=Ragged.of(completions),
        logprobs=torch.zeros(sum(map(len, completions))),
        temperature=torch.ones(num_rows),
        advantage=torch.from_numpy(rng.choice([-1.0, 1.0], num_rows)),
        group=torch.arange(num_rows) // group,
        reward=reward,
        correct=reward,
    )


class Bench:
    """A model and rows, and steps over them, by one process or as one of several ranks."""

    def __init__(self, case: dict[str, Any], ranks: Ranks = ALONE) -> None:
        self.model = new_model(case["model"])
        self.ranks = ranks
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        sizes = case["prompt"], case["completion"], case["groups"], int(vocabulary)
        self.rows = new_rollouts(*sizes, case.get("group", GROUP))
        self.settings = StepConfig(lr=1e-6, warmup_steps=0)
        if ranks.mesh is not None:
            shard(self.model, ranks.mesh, torch.float32)
        self.state = TrainState(self.model, self.settings, seed=0)

    def step_s(self, form: str) -> float:
        """Seconds of one step."""
        started = time.perf_counter()
        if form == "plain":
            self._plain()
        else:
            budget, chosen = Budget(self.settings.micro_tokens, ranks=self.ranks), torch.arange(self.rows.num_rows)
            Step(self.state, self.rows, OBJECTIVE, self.settings, "packed", budget).take(chosen)
        return time.perf_counter() - started

    def _plain(self) -> None:
        """A step of a plain padded loop."""
        prompts, completions = self.rows["prompt"].lengths, self.rows.lengths
        ids = torch.zeros(self.rows.num_rows, int((prompts + completions).max()), dtype=torch.int64)
        for row, tokens in enumerate(zip(self.rows["prompt"], self.rows["completion"], strict=True)):
            ids[row, : int(prompts[row] + completions[row])] = torch.cat(tokens)
        at = torch.arange(ids.shape[1])
        real = at < (prompts + completions)[:, None]
        scored = (real & (at >= prompts[:, None]))[:, 1:]
        self.state.optimizer.zero_grad()
        for part in torch.arange(len(ids)).split(MICRO):
            logits = self.model(input_ids=ids[part], attention_mask=real[part].long()).logits[:, :-1]
            logp = torch.log_softmax(logits, -1).gather(-1, ids[part, 1:, None])[..., 0]
            ratio = (logp - logp.detach()).exp()
            advantage = self.rows["advantage"][part, None].float()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            ((loss * scored[part]).sum() / scored.sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.state.optimizer.step()

    def tokens(self) -> tuple[int, int]:
        """Tokens of all rows, and those that go through the model once prompts are shared."""
        packs = divided(self.rows, torch.arange(self.rows.num_rows), "packed", self.settings.micro_tokens)
        whole = int((self.rows["prompt"].lengths + self.rows.lengths).sum())
        return whole, sum(pack.num_tokens for pack in packs)


class TrlSteps:
    """TRL's trainer on the rows of a case, in a process of its own."""

    def __init__(self, bench: Bench, folder: Path, threads: int) -> None:
        bench.model.save_pretrained(folder)
        load_policy(POLICY, "float32").tokenizer.save_pretrained(folder)
        rows = {
            "prompts": [tokens.tolist() for tokens in bench.rows["prompt"]],
            "completions": [tokens.tolist() for tokens in bench.rows["completion"]],
            "advantages": bench.rows["advantage"].tolist(),
        }
        given = {"mode": "update", "policy": str(folder), "prompts": ["1 + 1"], "group": 8}
        self._trl = Trl(trl_python(), {**given, "threads": threads, "rows": rows})
        first = self._trl.ask({"micro": MICRO})
        self.num_bytes: int = first["bytes"]
        sizes = (MICRO, min(64, bench.rows.num_rows))
        self.micro = min(sizes, key=lambda micro: self._trl.ask({"micro": micro})["seconds"])

    def step_s(self) -> float:
        """Seconds of one step."""
        return self._trl.ask({"micro": self.micro})["seconds"]

    def close(self) -> None:
        """End the process."""
        self._trl.close()


def flops_per_s() -> float:
    """The rate of large float32 matrix products, the best of five."""
    a = torch.randn(2048, 2048)
    times: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(times)


def peak_bytes(case: dict[str, Any], form: str, threads: int) -> int:
    """Memory that a process of its own needs for a step, above what it held before."""
    command = [sys.executable, __file__, "--child", json.dumps([case, form]), "--threads", str(threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def child(case: dict[str, Any], form: str) -> None:
    """Print the memory of one step."""
    bench = Bench(case)
    bench.state.optimizer.zero_grad()
    before = common.peak_bytes(anew=True)
    bench.step_s(form)
    print(common.peak_bytes() - before)


def row(case: dict[str, Any], rounds: int, threads: int, with_trl: bool) -> str:
    """Measure one line of the table."""
    bench = Bench(case)
    times: dict[str, list[float]] = {"gradus": [], "plain": [], "trl": []}
    peak = 0.0
    with tempfile.TemporaryDirectory() as folder:
        trl = TrlSteps(bench, Path(folder), threads) if with_trl else None
        for _ in range(rounds + 1):
            for form in ("gradus", "plain"):
                times[form].append(bench.step_s(form))
            if trl is not None:
                times["trl"].append(trl.step_s())
            peak = max(peak, flops_per_s())
    memory = [peak_bytes(case, form, threads) for form in ("gradus", "plain")]
    if trl is not None:
        trl.close()
        memory.append(trl.num_bytes)
    whole, computed = bench.tokens()
    own = times["gradus"][1:]
    rate = 6 * sum(p.numel() for p in bench.model.parameters()) * computed / min(own)
    speeds = [f"{whole / statistics.median(times[form][1:]):,.0f}" if times[form] else "-" for form in times]
    ratios = [common.ratio(own, times[form][1:]) for form in ("plain", "trl")]
    cells = (case["model"], case["prompt"], f"{whole:,}", *speeds, *ratios, f"{whole / computed:.2f}")
    sizes = " / ".join(f"{each / 2**20:.0f}" for each in memory)
    return "| " + " | ".join(map(str, (*cells, f"{rate / peak:.0%}", sizes))) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=CASES, help="model:tokens of a prompt, ...")
    parser.add_argument("--completion", type=int, default=44)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--without-trl", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.child:
        child(*json.loads(given.child))
        return
    print(f"{platform.processor() or platform.machine()}, {given.threads} threads, torch {version('torch')}")
    print("|policy|prompt|tokens|Gradus, tokens/s|plain|TRL|plain / Gradus|TRL / Gradus|arithmetic|of the peak|MiB|")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name, prompt in (each.split(":") for each in given.cases.split(",")):
        groups = max(1, min(ROWS, TOKENS // (int(prompt) + given.completion)) // GROUP)
        case = {"model": name, "prompt": int(prompt), "completion": given.completion, "groups": groups}
        print(row(case, given.rounds, given.threads, not given.without_trl), flush=True)


if __name__ == "__main__":
    main()
