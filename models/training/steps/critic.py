"""A critic: a model of its own that estimates the reward to come at each token, with an optimiser of its own.

The value of a completion token is read off the hidden state that predicts it: V of the state before the token. On
several ranks its parameters are divided as a policy's are.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from transformers import PreTrainedModel

from gradus.models.objectives.returns import gae_advantages
from gradus.models.objectives.rows import Rows
from gradus.models.training.packed.forward import Form, form_of, hidden_states
from gradus.models.training.packed.packing import Pack
from gradus.models.training.parallel import clip_gradients, shard, shard_module
from gradus.models.training.passes import Budget, OnRows, longest, turns, unobserved
from gradus.models.training.settings import CriticConfig


class UpdateError(RuntimeError):
    """An update that must not be taken; the sentence says why."""


class Critic(torch.nn.Module):
    """A transformer with one number a token instead of a vocabulary.

    `backbone` is a float32 model of its own, which is divided among the ranks of a mesh.
    """

    def __init__(self, backbone: PreTrainedModel, settings: CriticConfig, mesh: DeviceMesh | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        config: Any = backbone.config
        # Zeros: values of 0 at first, as without a baseline.
        self.head = torch.nn.Linear(config.get_text_config().hidden_size, 1, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        if mesh is None:
            self.head.to(backbone.device)
        else:
            shard(backbone, mesh, torch.float32)
            shard_module(self.head, mesh, torch.float32)
        self.settings = settings
        # The output layer takes part in no value.
        self.trained = {name: p for name, p in self.named_parameters() if not _is_output(backbone, p)}
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=settings.lr, weight_decay=0.0)

    def adopt(self, settings: CriticConfig) -> None:
        """Continue with other settings."""
        self.settings = settings
        for group in self.optimizer.param_groups:
            group["lr"] = settings.lr

    def values_of(self, pack: Pack, form: Form) -> Tensor:
        """Values (m,) float32 of a pack's completion tokens, on the CPU."""
        return self.head(hidden_states(self.backbone, pack, form).float())[:, 0].cpu()

    def all_values(self, rows: Rows, budget: Budget, on_rows: OnRows = unobserved) -> Tensor:
        """Values (T,) of every completion token, without gradient."""
        form, chosen = form_of(self.backbone), torch.arange(rows.num_rows)

        def work(num_tokens: int) -> Tensor:
            found = torch.zeros(len(rows.row))
            for turn in turns(budget.ranks, rows, chosen, form, num_tokens):
                values = self.values_of(turn.pack, form)
                if turn.counts:
                    found[rows.places(turn.pack.rows)] = values
                on_rows(turn.num_rows)
            return budget.ranks.summed(found)

        with torch.no_grad():
            return budget.run(work, longest(rows))

    def step(self, rows: Rows, form: Form, budget: Budget, on_rows: OnRows) -> dict[str, float]:
        """One optimiser step towards the TD(lambda) targets of a step's rows; return its metrics."""
        before = rows["critic.value"]
        targets = gae_advantages(rows, gamma=self.settings.gamma, lam=self.settings.lam).float() + before
        num_counted = max(1, int(rows.mask.sum()))

        def work(num_tokens: int) -> float:
            """Accumulate the gradient of the mean loss over the step's counted tokens; return that mean."""
            self.optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for turn in turns(budget.ranks, rows, torch.arange(rows.num_rows), form, num_tokens):
                at = rows.places(turn.pack.rows)
                token = value_loss(self.values_of(turn.pack, form), before[at], targets[at], clip=self.settings.clip)
                loss = torch.where(rows.mask[at] & turn.counts, token, 0.0).sum() / num_counted
                loss.backward()
                total += float(loss.detach())
                on_rows(turn.num_rows)
            return float(budget.ranks.summed(torch.tensor(total, dtype=torch.float64)))

        loss = budget.run(work, longest(rows))
        norm = clip_gradients(self.trained.values(), self.settings.max_grad_norm)
        if not (np.isfinite(loss) and np.isfinite(norm)):
            raise UpdateError(f"the critic has loss {loss} and gradient norm {norm}")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        explained = _explained_variance(targets[rows.mask], before[rows.mask])
        return {"critic/loss": loss, "critic/grad_norm": norm, "critic/explained_variance": explained}


def value_loss(values: Tensor, before: Tensor, targets: Tensor, *, clip: float) -> Tensor:
    """Clipped value loss of each token: max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2, (m,).

    As in the reference code of PPO, arXiv 1707.06347, that later work describes (arXiv 2006.05990, choice C13).
    """
    clipped = torch.clamp(values, before - clip, before + clip)
    return torch.maximum((values - targets) ** 2, (clipped - targets) ** 2) / 2


def _is_output(backbone: PreTrainedModel, parameter: torch.nn.Parameter) -> bool:
    """Return whether a parameter is the output layer's alone (tied to the embeddings it is trained)."""
    output, embeddings = backbone.get_output_embeddings(), backbone.get_input_embeddings()
    own = {id(p) for p in output.parameters()} if isinstance(output, torch.nn.Module) else set[int]()
    return id(parameter) in own - {id(p) for p in embeddings.parameters()}


def _explained_variance(targets: Tensor, values: Tensor) -> float:
    """1 - Var(R - V) / Var(R); 0 if the targets do not vary."""
    variance = float(targets.double().var(correction=0))
    return 1 - float((targets - values).double().var(correction=0)) / variance if variance else 0.0
