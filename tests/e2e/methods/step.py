"""The last step of a run's last update, computed anew from what the run wrote.

An update of two steps keeps an average of the weights beside the last ones: of the three, the weights between the steps
follow. With them, and the policy before the update, the loss of the second step is computed in float64 by transformers,
one padded batch each; nothing of Gradus computes. N rows, M completion tokens end to end, V tokens of the vocabulary.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.e2e.conftest import Program

DECAY = 0.5
LEARNING = (
    *("update.epochs=2", "update.minibatch_groups=0", "update.warmup_steps=0", "update.lr=1e-4"),
    f"update.ema_decay={DECAY}",
)
"""Settings of a run whose last step can be computed anew."""
AtStep = Callable[["Step"], Tensor]
PerGroup = Callable[[np.ndarray[Any, Any]], Any]


class Step:
    """Rows, log-probs and results of the last step of the last update of a run, or of an earlier one."""

    def __init__(self, program: Program, run: str, update: int = -1) -> None:
        self.events = [e for e in program.events(run) if e["event"] in ("stage_started", "stage_reused")]
        event = self.events_of("update")[update]
        self.round: int = event["round"]
        self.lake, self.inputs, self.output = program.home / "lake", event["inputs"], event["output"]
        self.program, self.run = program, run
        steps = json.loads((self.lake / self.output / "_report.json").read_text())["steps"]
        self.metrics: Mapping[str, float] = steps[-1]
        self.steps = len(steps)
        self.table = pq.read_table(self.lake / self.output / "rows.parquet").to_pylist()
        ids = [row["rollout_id"] for row in self.table]
        self.rollouts = self.joined("rollouts", ids)
        self.scores = self.joined("scores", ids)
        batch = self.joined("batch", ids)
        self.batch = batch if batch[0] else self.rollouts
        groups = [row["group_id"] for row in self.batch]
        self.group = torch.tensor([sorted(set(groups)).index(name) for name in groups])
        self.reward, self.advantage, self.weight = (
            torch.tensor([np.nan if row[name] is None else row[name] for row in self.table], dtype=torch.float64)
            for name in ("reward", "advantage", "weight")
        )
        self.correct = torch.tensor([float(bool(row.get("correct"))) for row in self.scores], dtype=torch.float64)
        self.own = torch.tensor([row["origin"] == "own" for row in self.table])
        self.length = torch.tensor([len(row["completion_tokens"]) for row in self.rollouts])
        self.row = torch.repeat_interleave(torch.arange(len(ids)), self.length)
        self.tokens = torch.tensor([token for row in self.rollouts for token in row["completion_tokens"]])
        given = [row["logprobs"] or [np.nan] * len(row["completion_tokens"]) for row in self.rollouts]
        self.sampler = torch.tensor(np.array([v for row in given for v in row], dtype=np.float64))

    def events_of(self, stage: str) -> list[dict[str, Any]]:
        """The starts of a stage in the run's own rounds, in order."""
        return [each for each in self.events if each["stage"] == stage and each["purpose"] == "train"]

    @property
    def plans(self) -> list[dict[str, Any]]:
        """The rows of the plans of its round, those of waves too."""
        made = [e["output"] for e in self.events if e["round"] == self.round and e["stage"] in ("curate", "wave")]
        return [row for each in made for row in self.program.rows(each)]

    def all_rows(self, *names: str) -> list[dict[str, Any]]:
        """The rows of inputs of the update, joined, those that it left out too."""
        found = dict[str, dict[str, Any]]()
        for each in (each for name in names for each in self.inputs[name]):
            for row in self.program.rows(each):
                found.setdefault(row["rollout_id"], {}).update(row)
        return list(found.values())

    def joined(self, name: str, ids: list[str]) -> list[dict[str, Any]]:
        """The rows of an input of the update, in the order of its table."""
        found = {row["rollout_id"]: row for each in self.inputs.get(name, ()) for row in self.program.rows(each)}
        return [found.get(each, {}) for each in ids]

    def model(self, policy: str | Path) -> Any:
        """A policy of the lake, or in a folder, in float64."""
        return AutoModelForCausalLM.from_pretrained(self.lake / policy, dtype=torch.float64)

    def logits(self, model: Any, *, at_1: bool = False, prompts: list[list[int]] | None = None) -> Tensor:
        """(M, V): at the temperature of the row, or at 1, behind the prompt that it is trained for, or another."""
        prompts = prompts or [row.get("trained_prompt_tokens") or row["prompt_tokens"] for row in self.rollouts]
        texts = [[*prompt, *row["completion_tokens"]] for prompt, row in zip(prompts, self.rollouts, strict=True)]
        width = max(map(len, texts))
        ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
        mask = torch.tensor([[1] * len(text) + [0] * (width - len(text)) for text in texts])
        all_logits = model(input_ids=ids, attention_mask=mask).logits
        ends = zip(prompts, texts, strict=True)
        found = torch.cat([all_logits[i, len(p) - 1 : len(text) - 1] for i, (p, text) in enumerate(ends)])
        return found if at_1 else found / self.temperature[self.row, None]

    @property
    def averaged(self) -> str:
        """The average of the policies before the update."""
        given = self.inputs["policy"][0]
        return f"{given}/ema" if (self.lake / given / "ema").is_dir() else given

    @cached_property
    def temperature(self) -> Tensor:
        """(N,)."""
        return torch.tensor([row["temperature"] or 1.0 for row in self.rollouts], dtype=torch.float64)

    @cached_property
    def policy(self) -> Any:
        """The policy of the second step, whose parameters get the gradient: average after = d^2 before + d (1 - d) of
        the step + (1 - d) last."""
        found, before, last = (self.model(each) for each in (f"{self.output}/ema", self.averaged, self.output))
        with torch.no_grad():
            for own, first, second in zip(*(each.parameters() for each in (found, before, last)), strict=True):
                own.sub_(DECAY**2 * first + (1 - DECAY) * second).div_(DECAY * (1 - DECAY))
        return found

    @cached_property
    def now_logits(self) -> Tensor:
        """(M, V), with gradient."""
        return self.logits(self.policy)

    @cached_property
    def now_all(self) -> Tensor:
        """(M, V): log-probs of the policy of the step, with gradient."""
        return self.now_logits.log_softmax(-1)

    @cached_property
    def now(self) -> Tensor:
        """(M,): log-prob of the tokens under the policy of the step, with gradient."""
        return self.taken(self.now_all)

    @cached_property
    def entropy(self) -> Tensor:
        """(M,), with gradient."""
        return -(self.now_all.exp() * self.now_all).sum(-1)

    def all_of(self, policy: str | Path, prompts: list[list[int]] | None = None) -> Tensor:
        """(M, V): log-probs of another policy, without gradient."""
        with torch.no_grad():
            return self.logits(self.model(policy), prompts=prompts).log_softmax(-1)

    @cached_property
    def old(self) -> Tensor:
        """(M,): that of the policy before the update."""
        return self.taken(self.all_of(self.inputs["policy"][0]))

    @cached_property
    def ref_all(self) -> Tensor:
        """(M, V): that of the reference, which is the average if it is no policy of its own."""
        return self.all_of(self.inputs.get("reference", [self.averaged])[0])

    @cached_property
    def ref(self) -> Tensor:
        """(M,): that of the reference."""
        return self.taken(self.ref_all)

    def taken(self, of_all: Tensor) -> Tensor:
        """(M,): that of the tokens themselves."""
        return of_all.gather(1, self.tokens[:, None])[:, 0]

    @cached_property
    def ratio(self) -> Tensor:
        """(M,): policy of the step to that before the update, with gradient."""
        return (self.now - self.old).exp()

    def sum(self, of_tokens: Tensor) -> Tensor:
        """(N,): by row."""
        return of_tokens.new_zeros(len(self.length)).index_add(0, self.row, of_tokens)

    def mean(self, of_tokens: Tensor) -> Tensor:
        """(N,): by row."""
        return self.sum(of_tokens) / self.length

    def by_group(self, each: PerGroup, values: Tensor | None = None) -> Tensor:
        """(N,): a function of the values of each group, the rewards if none are given."""
        given, found = self.reward if values is None else values, torch.zeros(len(self.group), dtype=torch.float64)
        for group in self.group.unique():
            members = self.group == group
            found[members] = torch.as_tensor(np.array(each(given[members].numpy())), dtype=torch.float64)
        return found

    @cached_property
    def varied(self) -> Tensor:
        """(N,): rows of groups of unequal rewards."""
        return self.by_group(lambda r: float(np.ptp(r) > 0)) > 0

    def pairs(self, first: Callable[[int, int], bool]) -> list[tuple[int, int]]:
        """Rows i, j of a group of which i stands before j."""
        of = self.group.tolist()
        numbers = range(len(of))
        return [(i, j) for i in numbers for j in numbers if i != j and of[i] == of[j] and first(i, j)]

    def norm(self, loss: Tensor) -> float:
        """The norm of the gradient of a loss."""
        parameters = [each for each in self.policy.parameters() if each.requires_grad]
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        return float(torch.stack([each.norm() for each in found if each is not None]).norm())


@dataclass(frozen=True)
class Expected:
    """The loss of the last step, by a paper's formula."""

    loss: Tensor
    """Its gradient is that of the step."""
    advantage: Tensor | None = None
    """(N,) or (M,): that of the update's table; None if it has another meaning there."""
    value: bool = True
    """False if the value that the update reports is not the paper's: that of coefficients."""


def close(one: float, other: float, relative: float = 1e-3) -> bool:
    """Return whether two numbers are the same up to float32."""
    return abs(one - other) <= relative * max(abs(one), abs(other)) + 1e-6


def differs(step: Step, expected: Expected) -> str:
    """Return in what a step differs from a formula, the first of advantage, loss and gradient; empty if in nothing."""
    if expected.advantage is not None:
        of_tokens = expected.advantage if len(expected.advantage) == len(step.row) else expected.advantage[step.row]
        off = float((step.mean(of_tokens.detach()) - step.advantage).abs().max())
        if off > 1e-3 * max(1e-3, float(step.advantage.abs().max())):
            return f"advantages differ by {off}"
    said, loss = step.metrics["policy/loss"], float(expected.loss.detach())
    if expected.value and not close(loss, said):
        return f"the loss is {said}, by the formula {loss}"
    said, norm = step.metrics["policy/grad_norm"], step.norm(expected.loss)
    return "" if close(norm, said) else f"the gradient has norm {said}, by the formula {norm}"
