"""TRL's generation, one round for each line of JSON on standard input; run by trl_generation.py with TRL's own Python.

The first line has policy (a folder), prompts (texts), group and max_tokens; the answer is the token ids of the prompts
as TRL makes them. Every further line has block (sequences generated together), attention, cache and seed; the answer is
the tokens sampled and the seconds they took. Timed is `_generate_single_turn` of a GRPOTrainer alone: padding, generate
and the cut after the end token; neither tokenising nor decoding nor scoring.
"""

import json
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

_ANSWERS = sys.stdout
sys.stdout = sys.stderr


def trainer(given: dict[str, Any], folder: str) -> GRPOTrainer:
    """A trainer in float32 without gradient checkpointing, ready to generate."""
    size = len(given["prompts"]) * given["group"]
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        per_device_train_batch_size=size,
        num_generations=given["group"],
        max_completion_length=given["max_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        pad_to_multiple_of=None,
        model_init_kwargs={"dtype": "float32"},
        report_to="none",
    )
    prompts = Dataset.from_list([{"prompt": text} for text in given["prompts"]])
    made = GRPOTrainer(
        model=given["policy"],
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=prompts,
    )
    made.model.train()
    return made


def sampled(grpo: GRPOTrainer, prompts: list[list[int]], group: int, how: dict[str, Any]) -> dict[str, float]:
    """Generate for every prompt `group` times, `block` sequences at once, as TRL repeats and pads them."""
    grpo.model.set_attn_implementation(how["attention"])
    cache = None if how["cache"] == "dynamic" else how["cache"]
    grpo.generation_config.cache_implementation = grpo.generation_kwargs["cache_implementation"] = cache
    torch.manual_seed(how["seed"])
    repeated = [tokens for tokens in prompts for _ in range(group)]
    num_tokens, started = 0, time.perf_counter()
    for first in range(0, len(repeated), how["block"]):
        completions, _ = grpo._generate_single_turn(repeated[first : first + how["block"]], None, {}, group)  # noqa: SLF001
        num_tokens += sum(map(len, completions))
    return {"tokens": num_tokens, "seconds": time.perf_counter() - started}


def main() -> None:
    given = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory() as folder:
        grpo = trainer(given, folder)
        prompts, _, _ = grpo._tokenize_prompts(given["prompts"])  # noqa: SLF001
        print(json.dumps(prompts), file=_ANSWERS, flush=True)
        for line in sys.stdin:
            print(json.dumps(sampled(grpo, prompts, given["group"], json.loads(line))), file=_ANSWERS, flush=True)


if __name__ == "__main__":
    main()
