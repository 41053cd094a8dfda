"""TRL's update, one step for each line of JSON on standard input; run by update.py with TRL's own Python.

The first line has policy (a folder), threads and rows (prompts, completions and advantages, as token ids and numbers);
the answer is empty. Every further line has micro, the rows of a micro-batch; the answer is the seconds of one step and
the memory that it added in bytes. A step is what GRPOTrainer does with rows that are scored: `compute_loss` and
backward for every micro-batch of the rows padded to the longest, gradient clipping and the optimiser that it creates;
no generation, no reward, no reference model.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

_ANSWERS = sys.stdout
sys.stdout = sys.stderr


def trainer(given: dict[str, Any], folder: str) -> GRPOTrainer:
    """A trainer in float32 without gradient checkpointing, ready for a step."""
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        per_device_train_batch_size=8,
        num_generations=8,
        beta=0.0,
        learning_rate=1e-6,
        model_init_kwargs={"dtype": "float32"},
        report_to="none",
    )
    made = GRPOTrainer(
        model=given["policy"],
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": "1 + 1"}]),
    )
    made.model.train()
    made.create_optimizer()
    return made


def padded(lists: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of rows padded to the longest."""
    length = max(map(len, lists))
    ids, mask = torch.zeros(2, len(lists), length, dtype=torch.int64)
    for row, tokens in enumerate(lists):
        at = slice(length - len(tokens), length) if left else slice(0, len(tokens))
        ids[row, at], mask[row, at] = torch.tensor(tokens), 1
    return ids, mask


def batch_of(rows: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What `compute_loss` is called with."""
    prompt_ids, prompt_mask = padded(rows["prompts"], left=True)
    completion_ids, completion_mask = padded(rows["completions"], left=False)
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor(rows["advantages"]),
    }


def step(grpo: GRPOTrainer, batch: dict[str, torch.Tensor], micro: int) -> None:
    """One optimiser step over all rows."""
    num_rows = len(batch["prompt_ids"])
    grpo.current_gradient_accumulation_steps = grpo.args.steps_per_generation = -(-num_rows // micro)
    total = batch["completion_mask"].sum()
    for first in range(0, num_rows, micro):
        part = {name: values[first : first + micro] for name, values in batch.items()}
        grpo.compute_loss(grpo.model, {**part, "num_items_in_batch": total}).backward()
    torch.nn.utils.clip_grad_norm_(grpo.model.parameters(), 1.0)
    grpo.optimizer.step()
    grpo.optimizer.zero_grad()


def peak_bytes() -> int:
    """The peak of this process's resident memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    given = json.loads(sys.stdin.readline())
    torch.set_num_threads(given["threads"])
    with tempfile.TemporaryDirectory() as folder:
        grpo, batch = trainer(given, folder), batch_of(given["rows"])
        print("{}", file=_ANSWERS, flush=True)
        for line in sys.stdin:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins anew
            before, started = peak_bytes(), time.perf_counter()
            step(grpo, batch, json.loads(line)["micro"])
            found = {"seconds": time.perf_counter() - started, "bytes": peak_bytes() - before}
            print(json.dumps(found), file=_ANSWERS, flush=True)


if __name__ == "__main__":
    main()
