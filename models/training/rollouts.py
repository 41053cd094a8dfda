"""The rows of an update as flat tensors."""

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from gradus.models.engines.sampling import SamplingParams
from gradus.models.training.packed.forward import Form
from gradus.models.training.packed.packing import Pack, pack_of, packs, padded_batches
from gradus.models.training.packed.ragged import Ragged, distinct


@dataclass(frozen=True)
class Rollouts:
    """The rows that an update learns from: N rows, T completion tokens end to end."""

    prompts: Ragged
    """N lists of token ids, none empty."""
    completions: Ragged
    """N lists of token ids, T in all."""
    logprobs: Tensor
    """(T,) float32: the sampler's log-probs, nats."""
    temperature: Tensor
    """(N,) float32 sampling temperature."""
    advantage: Tensor
    """(N,) float64; 0 where every step makes its own."""
    group: Tensor
    """(N,) int64."""
    reward: Tensor
    """(N,) float64."""
    correct: Tensor
    """(N,) float64: 1 right, 0 wrong, NaN unknown."""
    origin: Tensor | None = None
    """(N,) int64: 1 + the place of the row's loss in `UpdateSettings.origin_losses`, 0: the update's; None: all 0."""
    trained: Tensor | None = None
    """(T,) bool: tokens that carry loss; None: all. Tool output, inserted text and given prefixes carry none."""
    compared: Tensor | None = None
    """(T,) bool: tokens that the policy sampled after the prompt that they are trained for, whose log-probs sampler and
    trainer must agree on; None: all."""
    drawn: SamplingParams | None = None
    """How the N rows were drawn, where the trainer's side of every comparison with the sampler is truncated like it;
    None compares with the full softmax."""

    def __post_init__(self) -> None:
        """Raise ValueError if there are not as many log-probs as completion tokens."""
        if len(self.logprobs) != len(self.completions.values):
            raise ValueError(f"{len(self.completions.values)} completion tokens have {len(self.logprobs)} log-probs")

    @property
    def num_rows(self) -> int:
        """N."""
        return len(self.completions)

    @cached_property
    def prompt(self) -> Tensor:
        """(N,) int64: the number of each row's prompt, equal prompts alike."""
        return distinct(self.prompts)

    def longest(self, rows: Tensor) -> int:
        """Tokens of the longest of some rows, its prompt included."""
        return int((self.prompts.lengths[rows] + self.completions.lengths[rows]).max())

    def packs(self, rows: Tensor, form: Form, budget_tokens: int) -> list[Pack]:
        """Divide rows into forward passes of at most `budget_tokens`, padding included where rows are padded."""
        prompt_tokens, completion_tokens = self.prompts.lengths[rows], self.completions.lengths[rows]
        if form == "packed":
            divided = packs(self.prompt[rows], prompt_tokens, completion_tokens, budget_tokens)
        else:
            divided = padded_batches(prompt_tokens + completion_tokens, budget_tokens)
        trees = form == "packed"
        return [pack_of(rows[part], self.prompt, self.prompts, self.completions, trees=trees) for part in divided]

    def drawing(self, rows: Tensor) -> SamplingParams | None:
        """Return the sampling parameters of the rows."""
        return None if self.drawn is None else self.drawn.select(rows)
