"""One optimiser step of Qwen2.5 policies with random weights on a GPU: utilisation, memory, seconds by part.

    python benchmarks/gpu_update.py [--sizes 0.5b,1.5b] [--pack-tokens 4096] [--prompt 512] [--completion 1024]
                                    [--groups 16] [--rounds 5] [--peak-tflops 990]
    python benchmarks/gpu_update.py --sizes tiny --device cpu --groups 2 --rounds 1     # the same code on any machine

Groups of 8; completions of 5 to `--completion` tokens, uniform; bfloat16 with float32 masters and fused AdamW; the
advantages are random. MFU is the arithmetic of the tokens that go through the model once prompts are shared, 6 x
parameters x tokens and the attention's 12 x layers x width x attended tokens, over the time of a step and
`--peak-tflops` (990: bfloat16, dense, H100 and H200). Attended tokens are counted from the packs. Parts: a forward and
backward pass of all packs, and the optimiser alone. `largest` doubles the pack until memory runs out.
"""

import argparse
import statistics
import time
from importlib.metadata import version

import torch
import update
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from gradus.models.training.packed.forward import form_of
from gradus.models.training.passes import Budget, divided
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.models.training.update import Step

SHAPES = {
    "0.5b": (896, 24, 14, 2, 4864, 151_936),
    "1.5b": (1536, 28, 12, 2, 8960, 151_936),
    "tiny": (64, 2, 4, 2, 128, 512),
}
"""Hidden size, layers, heads, key heads, width of the middle layer, vocabulary: Qwen2.5's configurations, and one for
a test of this script."""


def new_model(name: str, device: torch.device) -> PreTrainedModel:
    """Return a Qwen2.5 policy of random bfloat16 weights."""
    hidden, layers, heads, key_heads, middle, vocabulary = SHAPES[name]
    config = Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        intermediate_size=middle,
        vocab_size=vocabulary,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


class Bench:
    """A policy on a device, and steps over the same rows."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.device = torch.device(given.device)
        self.model = new_model(name, self.device)
        vocabulary = SHAPES[name][-1]
        self.rows = update.new_rollouts(given.prompt, given.completion, given.groups, vocabulary)
        self.settings = StepConfig(lr=1e-6, warmup_steps=0, micro_tokens=given.pack_tokens)
        self.state = TrainState(self.model, self.settings, seed=0)
        self.form = form_of(self.model)

    def step_s(self, pack_tokens: int) -> float:
        """Seconds of one step."""
        step = Step(self.state, self.rows, update.OBJECTIVE, self.settings, self.form, Budget(pack_tokens))
        started = self._now()
        step.take(torch.arange(self.rows.num_rows))
        return self._now() - started

    def optimizer_s(self) -> float:
        """Seconds of the optimiser alone, on gradients of zero."""
        for master in self.state.masters.values():
            master.grad = torch.zeros_like(master)
        started = self._now()
        self.state.advance()
        found = self._now() - started
        self.state.zero_grad()
        return found

    def operations(self, pack_tokens: int) -> float:
        """Arithmetic operations of the model in a step."""
        packs = divided(self.rows, torch.arange(self.rows.num_rows), self.form, pack_tokens)
        config = self.model.config
        tokens = attended = 0.0
        for pack in packs:
            lengths = (pack.prompts.lengths + pack.completions.lengths).double()
            if self.form == "packed":
                tokens += pack.num_tokens
                attended += float((pack.positions.double() + 1).sum())
            else:
                tokens += float(lengths.sum())
                attended += float((lengths * (lengths + 1) / 2).sum())
        parameters = sum(p.numel() for p in self.model.parameters())
        return 6 * parameters * tokens + 12 * config.num_hidden_layers * config.hidden_size * attended

    def largest_pack(self, pack_tokens: int) -> int:
        """The largest pack that fits, doubling from here; at most all tokens of the step."""
        whole = int((self.rows["prompt"].lengths + self.rows.lengths).sum())
        while pack_tokens < whole:
            try:
                self.step_s(2 * pack_tokens)
            except torch.OutOfMemoryError:
                break
            pack_tokens *= 2
        return pack_tokens

    def peak_bytes(self) -> int:
        """The most memory that was in use on the device, 0 on a CPU."""
        return torch.cuda.max_memory_allocated() if self.device.type == "cuda" else 0

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def row(name: str, given: argparse.Namespace) -> str:
    """Measure one line of the table."""
    bench = Bench(name, given)
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    steps = [bench.step_s(given.pack_tokens) for _ in range(given.rounds + 1)][1:]
    step_s, peak = statistics.median(steps), bench.peak_bytes()
    optimizer_s = statistics.median(bench.optimizer_s() for _ in range(given.rounds))
    tokens = int((bench.rows["prompt"].lengths + bench.rows.lengths).sum())
    mfu = bench.operations(given.pack_tokens) / step_s / (given.peak_tflops * 1e12)
    cells = (
        name,
        bench.form,
        f"{tokens:,}",
        f"{tokens / step_s:,.0f}",
        f"{mfu:.1%}",
        f"{step_s:.2f} ({step_s - optimizer_s:.2f} + {optimizer_s:.2f})",
        f"{peak / 2**30:.1f}",
        f"{bench.largest_pack(given.pack_tokens):,}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="0.5b,1.5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pack-tokens", type=int, default=4096)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--completion", type=int, default=1024)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-tflops", type=float, default=990.0)
    given = parser.parse_args()
    name = torch.cuda.get_device_name() if given.device == "cuda" else "cpu"
    print(f"{name}, torch {version('torch')}, transformers {version('transformers')}, packs of {given.pack_tokens}")
    heads = "policy|form|tokens|tokens/s|MFU|s (passes + optimiser)|peak GiB|largest pack"
    print(f"|{heads}|\n" + "|---" * 8 + "|")
    for size in given.sizes.split(","):
        print(row(size, given), flush=True)


if __name__ == "__main__":
    main()
