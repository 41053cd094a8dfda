"""The gradient of an objective on the rows of a round: in halves, by token, and compressed; and a step taken back.

The step is that of the update: the same preparation over all rows, the same packs. Only its loss is differentiated
twice, by the policy's quantities of each token and by the weights, so that both say the same of a method. One process.
Shapes: N rows, M completion tokens, P trained weights, K coordinates.
"""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from gradus.models.objectives.objective import Objective, advantage_column
from gradus.models.objectives.rows import Rows
from gradus.models.training.packed.packing import Pack
from gradus.models.training.parallel import clip_gradients
from gradus.models.training.passes import Budget, all_tokens, longest, turns
from gradus.models.training.settings import StepConfig
from gradus.models.training.state import TrainState
from gradus.models.training.steps.pack_loss import loss_of, measured
from gradus.models.training.update import Step

_OF_POLICY = "now."
_SEED = 0x6A09E667


@dataclass(frozen=True)
class TokenPull:
    """By how much the objective pulls at each token's log-prob."""

    pull: Tensor
    """(M,) -dL/d(log-prob) of the step's loss, regularisers included; positive: the token is to become more likely."""
    mass: Tensor
    """(M,) |coefficient scale advantage| summed over the terms but regularisers: what the token would weigh without
    weights and clips; of a term that needs no advantage |coefficient scale|."""
    masked: Tensor
    """(M,) bool: tokens with mass whose loss a weight or correction multiplies by 0."""
    clipped: Tensor
    """(M,) bool: the others with mass at which the loss is flat."""


@dataclass(frozen=True)
class Gradient:
    """Minus the gradient of a step's loss by the trained weights, as two halves of its groups that sum to it."""

    halves: tuple[Tensor, Tensor]
    """(K,) float32 each, compressed."""
    squared_norms: tuple[float, float]
    product: float
    """Inner product of the halves; both are of all P weights."""
    tokens: TokenPull

    @property
    def norm(self) -> float:
        """Norm of the whole gradient."""
        return max(0.0, sum(self.squared_norms) + 2 * self.product) ** 0.5

    @property
    def signal_to_noise(self) -> float:
        """Return 4 <a, b> / |a - b|^2 of the halves a and b: an estimate of |E g|^2 over the variance of g = a + b.

        Halves of one distribution have 4 E<a, b> = |E g|^2 and E|a - b|^2 = Var g. It may be below 0; NaN without
        noise.
        """
        noise = sum(self.squared_norms) - 2 * self.product
        return 4 * self.product / noise if noise > 0 else float("nan")

    @property
    def half_cosine(self) -> float:
        """Cosine of the halves; NaN if one is 0."""
        size = (self.squared_norms[0] * self.squared_norms[1]) ** 0.5
        return self.product / size if size else float("nan")


def half_gradients(step: Step, half: Tensor, num_coordinates: int) -> Gradient:
    """Compute the gradient of a step that is not taken; the trained weights keep it as their `grad`.

    Args:
        step: A step of the update.
        half: (N,) bool: rows of the second half.
        num_coordinates: K, at most; see `compressed`.
    """
    return step.budget.run(lambda num_tokens: _halves(step, half, num_coordinates, num_tokens), longest(step.rows))


def _halves(step: Step, half: Tensor, num_coordinates: int, num_tokens: int) -> Gradient:
    prepared, _ = step.prepared(num_tokens)
    masters = [*step.train_state.masters.values()]
    found = torch.zeros(4, len(prepared.row))
    step.train_state.zero_grad()
    halves = list[list[Tensor]]()
    for rows in (~half, half):
        for turn in turns(step.budget.ranks, step.rows, rows.nonzero()[:, 0], step.form, num_tokens):
            found[:, prepared.places(turn.pack.rows)] = _backward(step, prepared, turn.pack)
            step.on_rows(turn.num_rows)
        sums = [torch.zeros_like(each) if each.grad is None else each.grad.detach() for each in masters]
        if halves:  # they have been added up over both: less the first, of which this is minus the sum
            sums = [now + first for now, first in zip(sums, halves[0], strict=True)]
        halves.append([-each for each in sums])
    first, second = halves
    compact = compressed(first, num_coordinates), compressed(second, num_coordinates)
    pull, mass, masked, clipped = found
    tokens = TokenPull(pull, mass, masked > 0, clipped > 0)
    return Gradient(compact, (_product(first, first), _product(second, second)), _product(second, first), tokens)


def _backward(step: Step, prepared: Rows, pack: Pack) -> Tensor:
    """Add a pack's gradient to that of the weights; return pull, mass, masked and clipped of its tokens, (4, m)."""
    rows = prepared.select(pack.rows)
    seen = measured(step.train_state.model, step.objective, rows, pack, step.form)
    names = [name for name in seen.columns if name.startswith(_OF_POLICY) and seen[name].requires_grad]
    leaves = {name: seen[name].detach().requires_grad_() for name in names}
    apart = seen.adding(of_tokens=leaves)
    by_token = _by_leaf(step.objective, rows, apart, leaves)
    torch.autograd.backward([seen[name] for name in names], [by_token[name] for name in names])
    policy_terms = replace(
        step.objective,
        terms=tuple(replace(term, coefficient=0.0) if term.regulariser else term for term in step.objective.terms),
    )
    alone = by_token if policy_terms == step.objective else _by_leaf(policy_terms, rows, apart, leaves)
    with torch.no_grad():
        _, _, weight, _ = loss_of(step.objective, rows, apart)
    mass = _mass(policy_terms, seen)
    flat = torch.stack([each.reshape(len(mass), -1).abs().sum(1) for each in alone.values()]).sum(0) == 0
    masked = (mass > 0) & (weight == 0)
    return torch.stack((-by_token["now.logp"], mass, masked.float(), ((mass > 0) & flat & ~masked).float()))


def _by_leaf(objective: Objective, rows: Rows, seen: Rows, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """Differentiate the loss by the policy's quantities of each token; 0 where it does not depend on one."""
    total = loss_of(objective, rows, seen)[0]
    if not total.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(total, [*leaves.values()], allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _mass(objective: Objective, rows: Rows) -> Tensor:
    members, found = objective.members(rows), torch.zeros(len(rows.row))
    for index, term in enumerate(objective.terms):
        scale = (term.coefficient * rows[f"scale.{index}"]).abs()
        own = scale if term.acts_without_advantage else scale * rows[advantage_column(term.advantage)].abs().float()
        found += torch.where(rows.mask & members[rows.row, index], own, 0.0)
    return found


def _product(ones: Iterable[Tensor], others: Iterable[Tensor]) -> float:
    return sum(float((one.double() * other.double()).sum()) for one, other in zip(ones, others, strict=True))


def compressed(parts: Iterable[Tensor], size: int) -> Tensor:
    """Return the numbers of tensors as (K,) float32 on the CPU, K = min(P, size).

    More than `size` are added up by a count sketch (Charikar, Chen and Farach-Colton 2002): each of the P numbers, by
    a fixed random sign, to one of `size` sums. Inner products of two sketches estimate those of the vectors without
    bias, with a standard deviation of at most |a| |b| sqrt(2 / size).
    """
    numbers = [part.detach().float().flatten().cpu() for part in parts]
    if sum(map(len, numbers)) <= size:
        return torch.cat(numbers)
    found, generator = torch.zeros(size), torch.Generator().manual_seed(_SEED)
    for each in numbers:
        place = torch.randint(2 * size, (len(each),), generator=generator)
        found.index_add_(0, place // 2, torch.where(place % 2 == 0, each, -each))
    return found


class Moved(NamedTuple):
    """Change of the log-probs of held-out completions by a step, nats a completion; NaN without such rows."""

    right: float
    """Mean over right completions."""
    wrong: float
    """Mean over the others."""
    gain: float
    """Mean over all of (reward - mean reward of the row's group) x change: to first order by how much the step raises
    the mean reward of these problems, since d E[R] = E[R d log p], whatever is subtracted from R for a problem."""


@contextmanager
def stepped(train_state: TrainState, settings: StepConfig) -> Generator[None]:
    """Let the model have the weights that one step of the optimiser, with the gradients there, leads to.

    The optimiser is as it is, a new one without a history; its learning rate is that of `settings` without warm-up.
    """
    masters = train_state.masters.values()
    before = [master.detach().clone() for master in masters]
    clip_gradients(masters, settings.max_grad_norm)
    for group in train_state.optimizer.param_groups:
        group["lr"] = settings.lr
    train_state.optimizer.step()
    train_state.write_back()
    try:
        yield
    finally:
        with torch.no_grad():
            for master, weights in zip(masters, before, strict=True):
                master.copy_(weights)
        train_state.write_back()


def moved(train_state: TrainState, settings: StepConfig, held_out: Rows, before: Tensor, budget: Budget) -> Moved:
    """Return the change of the log-probs of held-out rows, `before` (M,), by a step that is taken back."""
    with stepped(train_state, settings):
        after = all_tokens(train_state.model, held_out, budget).logp
    change = held_out.row_sum((after - before).double())
    right = held_out["correct"] == 1
    above = held_out["reward"] - held_out.by("group").mean(held_out["reward"])
    return Moved(float(change[right].mean()), float(change[~right].mean()), float((above * change).mean()))
