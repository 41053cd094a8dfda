"""Rewards of whole completions as returns of their tokens, with a critic's values as baseline. M tokens, N rows."""

import torch
from torch import Tensor

from gradus.models.objectives.rows import Rows


def gae_advantages(rows: Rows, *, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimation, one a token, (M,) float64; 0 for tokens that do not count.

    delta_t = r_t + gamma V_{t+1} - V_t, A_t = delta_t + gamma lam A_{t+1}, over the counted tokens of a row, with the
    row's reward as r of its last one and V = 0 after it. Schulman et al., arXiv 1506.02438, eq. 11 and 16.
    The value target of a token is A_t + V_t (TD(lambda)). Tokens that do not count (observed, inserted) are skipped:
    the next counted one follows at once.
    """
    counted = rows.mask.nonzero()[:, 0]
    row, values = rows.row[counted], rows["critic.value"][counted].double()
    lengths = rows.row_tokens
    # Rows as columns of a padded matrix, the last token of each first: one vector operation for each place.
    ends = lengths.cumsum(0)
    place = ends[row] - 1 - torch.arange(len(row))
    depth = int(lengths.max()) if len(lengths) else 0
    value = torch.zeros(depth + 1, rows.num_rows, dtype=torch.float64)
    value[place + 1, row] = values
    real = torch.zeros(depth + 1, rows.num_rows, dtype=torch.float64)
    real[place + 1, row] = 1.0
    found, advantage = torch.zeros_like(value), torch.zeros(rows.num_rows, dtype=torch.float64)
    for t in range(1, depth + 1):
        reward = rows["reward"] if t == 1 else 0.0
        delta = reward + gamma * value[t - 1] - value[t]
        advantage = (delta + gamma * lam * advantage) * real[t]
        found[t] = advantage
    result = torch.zeros(len(rows.row), dtype=torch.float64)
    result[counted] = found[place + 1, row]
    return result
