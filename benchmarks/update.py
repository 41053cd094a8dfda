"""One optimiser step in its two forms: sequences end to end with shared prompts (packed), and padded rows.

    python benchmarks/update.py [--models bundled,small,medium] [--prompts 11,64,110,512] [--rounds 5] [--threads 2]

Both forms take the same step of the same rows, in turns in one process; the first of each is not counted. The padded
form is what any causal model computes: rows sorted by length, padded to the longest of a batch, a prompt as often as it
has completions. Groups of 8; completions of 5 to `--completion` tokens, uniform; random weights but for the bundled
policy. Tokens counted are those of prompts and completions of every row, as padded rows without their padding hold them
(so the packed form computes fewer). `share of arithmetic` is the ratio of those counts, the most that sharing prompts
could save in layers whose cost is linear in tokens; `of the peak` is 6 x parameters x tokens computed, in a second,
beside the rate of matrix products of 2048 x 2048 measured in the same process.
Peak memory is that of a process for one form alone, above what it holds before its first step.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src")]

import numpy as np  # noqa: E402 - the checkout comes first
import torch  # noqa: E402
from gradus.models.training.steps.step import Hooks, ReferenceLogprobs, Step  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel  # noqa: E402

from gradus.models.policy import load_policy  # noqa: E402
from gradus.models.training.packed.forward import Form  # noqa: E402
from gradus.models.training.packed.ragged import Ragged  # noqa: E402
from gradus.models.training.rollouts import Rollouts  # noqa: E402
from gradus.models.training.settings import UpdateSettings  # noqa: E402
from gradus.models.training.state import TrainState  # noqa: E402

GROUP = 8
FORMS: tuple[Form, ...] = ("packed", "padded")
SHAPES = {"small": (192, 6, 6, 512, 4096), "medium": (448, 8, 8, 1216, 16384)}
"""Hidden size, layers, heads, width of the middle layer, vocabulary: 3.4 M and 34 M parameters."""


def new_model(name: str) -> PreTrainedModel:
    """Return a model by name."""
    if name == "bundled":
        return load_policy(ROOT / "data" / "samples" / "policy", "float32").model
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


def new_rollouts(prompt_tokens: int, completion_tokens: int, groups: int, vocabulary: int) -> Rollouts:
    """Return groups of completions of 5 to `completion_tokens` tokens, uniform, to prompts of about one length."""
    rng = np.random.default_rng(0)
    num_rows = groups * GROUP
    prompts = [rng.integers(2, vocabulary, prompt_tokens + int(rng.integers(-1, 2))).tolist() for _ in range(groups)]
    completions = [
        rng.integers(2, vocabulary, int(rng.integers(5, completion_tokens + 1))).tolist() for _ in range(num_rows)
    ]
    reward = torch.from_numpy(rng.integers(0, 2, num_rows).astype(np.float64))
    return Rollouts(
        prompts=Ragged.of([prompts[i // GROUP] for i in range(num_rows)]),
        completions=Ragged.of(completions),
        logprobs=torch.zeros(sum(map(len, completions))),
        temperature=torch.ones(num_rows),
        advantage=torch.from_numpy(rng.choice([-1.0, 1.0], num_rows)),
        group=torch.arange(num_rows) // GROUP,
        reward=reward,
        correct=reward,
    )


class Bench:
    """A model and rows, and steps over them."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.model = new_model(case["model"])
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        self.rows = new_rollouts(case["prompt"], case["completion"], case["groups"], int(vocabulary))
        self.settings = UpdateSettings(lr=1e-6)
        self.state = TrainState.new(self.model, self.settings, seed=0)

    def step_s(self, form: Form) -> float:
        """Seconds of one step."""
        hooks = Hooks(lambda _logprobs: None, lambda _index, _metrics: None, lambda _num: None)
        held = ReferenceLogprobs(None, None)
        step = Step(self.state, self.rows, torch.arange(self.rows.num_rows), self.settings, held, hooks, form)
        started = time.perf_counter()
        step.take()
        return time.perf_counter() - started

    def tokens(self, form: Form) -> int:
        """Tokens of all rows, or those that go through the model once prompts are shared."""
        if form == "padded":
            return int((self.rows.prompts.lengths + self.rows.completions.lengths).sum())
        packs = self.rows.packs(torch.arange(self.rows.num_rows), "packed", self.settings.micro_tokens)
        return sum(pack.num_tokens for pack in packs)


def flops_per_s() -> float:
    """The rate of large float32 matrix products, the best of five."""
    a = torch.randn(2048, 2048)
    times: list[float] = []
    for _ in range(5):
        started = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(times)


def peak_bytes(case: dict[str, Any], form: Form, threads: int) -> int:
    """Memory that a process of its own needs for a step, above what it held before."""
    command = [sys.executable, __file__, "--child", json.dumps([case, form]), "--threads", str(threads)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def child(case: dict[str, Any], form: Form) -> None:
    """Print the memory of one step."""
    bench = Bench(case)
    bench.state.optimizer.zero_grad()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins anew
    before = _peak_bytes()
    bench.step_s(form)
    print(_peak_bytes() - before)


def _peak_bytes() -> int:
    """The peak of this process's resident memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def row(case: dict[str, Any], rounds: int, threads: int) -> str:
    """Measure one line of the table."""
    bench = Bench(case)
    times: dict[Form, list[float]] = {form: [] for form in FORMS}
    for _ in range(rounds + 1):
        for form in FORMS:
            times[form].append(bench.step_s(form))
    packed, padded = (statistics.median(times[form][1:]) for form in FORMS)
    ratios = sorted(b / a for a, b in zip(times["packed"][1:], times["padded"][1:], strict=True))
    whole, computed = bench.tokens("padded"), bench.tokens("packed")
    rate = 6 * sum(p.numel() for p in bench.model.parameters()) * computed / packed
    memory = [peak_bytes(case, form, threads) / 2**20 for form in FORMS]
    return (
        f"| {case['model']} | {case['prompt']} | {whole} | {whole / packed:,.0f} | {whole / padded:,.0f} "
        f"| {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {whole / computed:.2f} "
        f"| {rate / flops_per_s():.0%} | {memory[0]:.0f} | {memory[1]:.0f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="bundled,small")
    parser.add_argument("--prompts", default="11,64,110,512")
    parser.add_argument("--completion", type=int, default=44)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.child:
        child(*json.loads(given.child))
        return
    print(f"{platform.processor() or platform.machine()}, {given.threads} threads, torch {version('torch')}")
    print("|model|prompt|tokens|packed, tokens/s|padded|times|share of arithmetic|of the peak|packed, MiB|padded|")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in given.models.split(","):
        for prompt in map(int, given.prompts.split(",")):
            if name != "bundled" or prompt + given.completion < 256:
                case = {"model": name, "prompt": prompt, "completion": given.completion, "groups": given.groups}
                print(row(case, given.rounds, given.threads), flush=True)


if __name__ == "__main__":
    main()
