"""Advantages that shapes have made."""

from torch import Tensor

from gradus.components import component
from gradus.models.objectives.rows import Rows


@component("advantage", paper="arXiv 2505.23564", needs=("credit",), per="token")
def credit(rows: Rows) -> Tensor:
    """Return what a shape gave each token, (M,); 0 where it gave nothing.

    SPO-chain (arXiv 2505.23564) with the shape `value_gains`; without std or whitening.
    """
    return rows["credit"]
