"""TRL's whole training step, one for each line on standard input; run by step.py with TRL's own Python.

The first line has policy (a folder), prompts (texts), group, max_tokens, micro (rows of a micro-batch) and threads; the
answer is empty. Every further line starts one optimiser step of `GRPOTrainer.train`; the answer has its seconds and the
completion tokens that it sampled. A step is all that the trainer does: generation, decoding, rewards, advantages, loss,
backward, optimiser, its own metrics.
"""

import json
import sys
import tempfile
import time
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

_ANSWERS = sys.stdout
sys.stdout = sys.stderr


class InTurns(TrainerCallback):
    """Begins a step when it is asked for one."""

    num_tokens = 0
    started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - transformers' signature
        """Wait for a line."""
        if not sys.stdin.readline():
            sys.exit(0)
        self.num_tokens, self.started = 0, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - transformers' signature
        """Answer it."""
        found = {"seconds": time.perf_counter() - self.started, "tokens": self.num_tokens}
        print(json.dumps(found), file=_ANSWERS, flush=True)


def trainer(given: dict[str, Any], folder: str) -> GRPOTrainer:
    """A trainer in float32 whose step is all prompts times the group, sampled at once."""
    size = len(given["prompts"]) * given["group"]
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        per_device_train_batch_size=given["micro"],
        gradient_accumulation_steps=size // given["micro"],
        steps_per_generation=size // given["micro"],
        num_generations=given["group"],
        max_completion_length=given["max_tokens"],
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_steps=10_000,
        shuffle_dataset=False,
        pad_to_multiple_of=None,
        model_init_kwargs={"dtype": "float32"},
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
    )
    in_turns = InTurns()

    def parity(completion_ids: list[list[int]], **_: Any) -> list[float]:
        in_turns.num_tokens += sum(map(len, completion_ids))
        return [float(len(tokens) % 2) for tokens in completion_ids]

    return GRPOTrainer(
        model=given["policy"],
        reward_funcs=parity,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": text} for text in given["prompts"]]),
        callbacks=[in_turns],
    )


def main() -> None:
    given = json.loads(sys.stdin.readline())
    torch.set_num_threads(given["threads"])
    with tempfile.TemporaryDirectory() as folder:
        grpo = trainer(given, folder)
        print("{}", file=_ANSWERS, flush=True)
        grpo.train()


if __name__ == "__main__":
    main()
