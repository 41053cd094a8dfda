"""TRL's GRPOTrainer at work for a line of JSON on standard input; run with TRL's own Python (see trl_generation.py).

The first line has `mode` and what a trainer is made of: policy (a folder), prompts (texts), group, max_tokens, micro
(rows of a micro-batch), threads, and rows that are scored for `update`. Each further line is one round of

    generate  `_generate_single_turn`: padding, generate, the cut after the end token; no tokenising, decoding, scoring
    update    `compute_loss` and backward for every micro-batch of the rows padded to the longest, clipping, optimiser
    step      a step of `GRPOTrainer.train`: generation, decoding, rewards, loss, backward, optimiser, its own metrics

and is answered with its seconds and the tokens sampled or the memory added, in bytes. The first answer is the token ids
of the prompts for `generate`, otherwise empty.
"""

import json
import sys
import tempfile
import time
from typing import Any

import torch
from common import peak_bytes
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

_ANSWERS = sys.stdout
sys.stdout = sys.stderr


def say(answer: object) -> None:
    print(json.dumps(answer), file=_ANSWERS, flush=True)


class InTurns(TrainerCallback):
    """Begins a step when it is asked for one."""

    num_tokens = 0
    started = 0.0

    def reward(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        """The parity of a completion's length."""
        self.num_tokens += sum(map(len, completion_ids))
        return [float(len(tokens) % 2) for tokens in completion_ids]

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - transformers' signature
        """Wait for a line."""
        if not sys.stdin.readline():
            sys.exit(0)
        self.num_tokens, self.started = 0, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002 - transformers' signature
        """Answer it."""
        say({"seconds": time.perf_counter() - self.started, "tokens": self.num_tokens})


def trainer(given: dict[str, Any], folder: str, in_turns: InTurns) -> GRPOTrainer:
    """A trainer in float32 without checkpointing of gradients; a step samples all prompts times the group at once."""
    size = len(given["prompts"]) * given["group"]
    micro = given.get("micro", size)
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_dropout=True,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=size // micro,
        steps_per_generation=size // micro,
        num_generations=given["group"],
        max_completion_length=given.get("max_tokens", 256),
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
    made = GRPOTrainer(
        model=given["policy"],
        reward_funcs=in_turns.reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": text} for text in given["prompts"]]),
        callbacks=[in_turns] if given["mode"] == "step" else [],
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


def padded(lists: list[list[int]], *, left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of rows padded to the longest."""
    length = max(map(len, lists))
    ids, mask = torch.zeros(2, len(lists), length, dtype=torch.int64)
    for row, tokens in enumerate(lists):
        at = slice(length - len(tokens), length) if left else slice(0, len(tokens))
        ids[row, at], mask[row, at] = torch.tensor(tokens), 1
    return ids, mask


def batch_of(rows: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the arguments of `compute_loss`."""
    found = {"advantages": torch.tensor(rows["advantages"])}
    for side in ("prompt", "completion"):
        found[f"{side}_ids"], found[f"{side}_mask"] = padded(rows[f"{side}s"], left=side == "prompt")
    return found


def updated(grpo: GRPOTrainer, batch: dict[str, torch.Tensor], micro: int) -> dict[str, float]:
    """One optimiser step over all rows."""
    before, started = peak_bytes(anew=True), time.perf_counter()
    num_rows = len(batch["prompt_ids"])
    grpo.current_gradient_accumulation_steps = grpo.args.steps_per_generation = -(-num_rows // micro)
    total = batch["completion_mask"].sum()
    for first in range(0, num_rows, micro):
        part = {name: values[first : first + micro] for name, values in batch.items()}
        grpo.compute_loss(grpo.model, {**part, "num_items_in_batch": total}).backward()
    torch.nn.utils.clip_grad_norm_(grpo.model.parameters(), 1.0)
    grpo.optimizer.step()
    grpo.optimizer.zero_grad()
    return {"seconds": time.perf_counter() - started, "bytes": peak_bytes() - before}


def main() -> None:
    given = json.loads(sys.stdin.readline())
    if "threads" in given:
        torch.set_num_threads(given["threads"])
    with tempfile.TemporaryDirectory() as folder:
        grpo = trainer(given, folder, InTurns())
        if given["mode"] == "step":
            say({})
            grpo.train()
        elif given["mode"] == "update":
            grpo.create_optimizer()
            batch = batch_of(given["rows"])
            say({})
            for line in sys.stdin:
                say(updated(grpo, batch, json.loads(line)["micro"]))
        else:
            prompts, _, _ = grpo._tokenize_prompts(given["prompts"])  # noqa: SLF001
            say(prompts)
            for line in sys.stdin:
                say(sampled(grpo, prompts, given["group"], json.loads(line)))


if __name__ == "__main__":
    main()
