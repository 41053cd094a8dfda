"""Every component of the registry, in the company that it declares: two ranks train the gradient of one process."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, distributed

from gradus.models.training.parallel import Ranks
from tests.models.objectives.registry import EVERY, LOOSER, TOLERANCE, trained_by
from tests.models.training.parallel.cases import on_ranks

NUM_RANKS = 2
Trained = dict[str, tuple[Tensor, dict[str, float]]]


def run_rank(rank: int, folder: str) -> None:
    """All components on one rank."""
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=NUM_RANKS)
    ranks = Ranks(rank, NUM_RANKS)
    torch.save({name: trained_by(name, 10_000, ranks) for name in EVERY}, f"{folder}/{rank}")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[Trained]:
    """Gradients and metrics of each rank, from one start of both."""
    folder: Path = tmp_path_factory.mktemp("objectives")
    on_ranks(run_rank, folder, NUM_RANKS)
    return [torch.load(folder / str(rank)) for rank in range(NUM_RANKS)]


@pytest.mark.parametrize("name", EVERY)
def test_two_ranks_train_the_gradient_of_one_process(name: str, by_rank: list[Trained]) -> None:
    whole, metrics = trained_by(name, 10_000)
    for found, others in (each[name] for each in by_rank):
        difference = torch.linalg.vector_norm(found - whole)
        assert float(difference) <= LOOSER.get(name, TOLERANCE) * float(torch.linalg.vector_norm(whole))
        assert others == pytest.approx(metrics, rel=1e-4, abs=1e-6)
