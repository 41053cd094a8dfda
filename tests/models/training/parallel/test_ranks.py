"""Updates of three ranks against those of one process: losses, gradients, norms, log-probs, weights."""

from dataclasses import asdict
from functools import cache

import pytest
import torch
from torch import distributed
from torch.nn import Parameter

from gradus.models.training.parallel import ALONE, Ranks, sum_gradients
from tests.models.training.parallel.cases import CASES, Taken, model, on_ranks, rounded, taken

NUM_RANKS = 3
"""Three divide all unevenly."""


def run_rank(rank: int, folder: str) -> None:
    """All cases of one rank."""
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=NUM_RANKS)
    ranks = Ranks(rank, NUM_RANKS)
    assert ranks.gathered(["ab" * rank, rank]) == [["ab" * each, each] for each in range(NUM_RANKS)]
    assert_gradients_are_summed(ranks)
    torch.save({name: asdict(taken(name, ranks)) for name in CASES}, f"{folder}/{rank}")
    distributed.destroy_process_group()


def assert_gradients_are_summed(ranks: Ranks) -> None:
    """Of one parameter every rank has a gradient, of one the last rank, of one none."""
    every, last, none = (Parameter(torch.zeros(2, 3)) for _ in range(3))
    every.grad = torch.full((2, 3), 10.0**ranks.rank)
    if ranks.rank == ranks.num_ranks - 1:
        last.grad = torch.arange(6.0).view(2, 3)
    sum_gradients(ranks, [every, last, none])
    assert every.grad.tolist() == [[sum(10.0**rank for rank in range(ranks.num_ranks))] * 3] * 2
    assert last.grad is not None
    assert last.grad.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert none.grad is None


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Taken]]:
    """The findings of each rank by case."""
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(run_rank, folder, NUM_RANKS)
    parts = [torch.load(folder / str(rank)) for rank in range(NUM_RANKS)]
    return [{name: Taken(**found) for name, found in part.items()} for part in parts]


@cache
def alone(name: str) -> Taken:
    return taken(name, ALONE)


@pytest.mark.parametrize("name", CASES)
def test_ranks_take_the_steps_of_one_process(name: str, by_rank: list[dict[str, Taken]]) -> None:
    expected = alone(name)
    for each in by_rank:
        found = each[name]
        assert len(found.metrics) == len(expected.metrics) == len(found.gradients)
        for step, (metrics, wanted) in enumerate(zip(found.metrics, expected.metrics, strict=True)):
            assert list(metrics) == list(wanted)
            assert metrics["policy/grad_norm"] == pytest.approx(wanted["policy/grad_norm"], rel=1e-4), step
            assert metrics == pytest.approx(wanted, rel=1e-4, abs=1e-6), step
        torch.testing.assert_close(torch.cat(found.logps), torch.cat(expected.logps), atol=1e-5, rtol=1e-5)
        assert len(found.critic) == len(expected.critic) == bool(CASES[name].critic) * len(found.metrics)
        both = zip([*found.gradients, *found.critic], [*expected.gradients, *expected.critic], strict=True)
        for gradients, wanted_gradients in both:
            assert gradients.keys() == wanted_gradients.keys()
            for parameter, gradient in gradients.items():
                wanted_gradient = wanted_gradients[parameter]
                difference = torch.linalg.vector_norm(gradient - wanted_gradient)
                assert float(difference) <= 1e-5 * float(torch.linalg.vector_norm(wanted_gradient)) + 1e-9, parameter
        assert found.average.keys() == expected.average.keys()


@pytest.mark.parametrize("name", CASES)
def test_every_rank_ends_with_the_same_bits(name: str, by_rank: list[dict[str, Taken]]) -> None:
    first, *others = (each[name] for each in by_rank)
    for other in others:
        assert first.metrics == other.metrics
        for mine, theirs in ((first.weights, other.weights), (first.average, other.average)):
            assert all(torch.equal(mine[parameter], theirs[parameter]) for parameter in mine)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.lora])
def test_the_base_of_an_adapter_keeps_its_bits_and_number_format(name: str, by_rank: list[dict[str, Taken]]) -> None:
    before = dict(rounded(model(), CASES[name].dtype).named_parameters())
    for each in by_rank:
        found = each[name]
        assert found.base.keys() == before.keys()
        for parameter, weight in before.items():
            assert found.base[parameter].dtype == CASES[name].dtype
            assert torch.equal(found.base[parameter], weight), parameter
        assert {weight.dtype for weight in found.weights.values()} == {torch.float32}
        assert all(not torch.equal(found.weights[name], weight) for name, weight in found.average.items())
        # Before the first step the policy differs from its reference by the adapter.
        assert not CASES[name].settings.kl_coef or found.metrics[0]["policy/kl_ref"] > 1e-4
