"""Log-probs of a model whose parameters are sharded by FSDP2 over two processes, held against the whole model's."""

from unittest import mock

import pytest
import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from gradus.models.training.packed import logprobs
from gradus.models.training.packed.forward import Form, form_of
from gradus.models.training.packed.logprobs import Asked, token_logprobs
from gradus.models.training.packed.packing import Pack
from tests.models.training.packed.test_forward import FORMS
from tests.models.training.packed.test_logprobs import packed, tiny
from tests.models.training.parallel.cases import on_ranks

RANKS = 2
ASKED = Asked(entropy_grad=True, logsumexp=True, mean_logp=True, top_k=3)
Found = tuple[Form, Tensor, dict[str, Tensor]]


def rows_of(rank: int) -> Pack:
    """Rows of a rank, more tokens in one than in the other."""
    prompts, completions = [[3, 4, 5], [3, 4, 5], [6, 7]], [[1, 2], [12, 13, 14, 15], [16]]
    return packed(prompts[rank:], completions[rank:])


def learnt(model: PreTrainedModel, rank: int) -> Found:
    """The model's form, values of a rank's rows, and gradients of a sum over them."""
    pack, form = rows_of(rank), form_of(model)
    found = token_logprobs(model, pack, torch.full((len(pack.rows),), 0.8), form, ASKED)
    assert found.logsumexp is not None
    assert found.mean_logp is not None
    assert found.top_logp is not None
    weights = torch.arange(1.0, 1 + len(found.logp))
    (found.logp * weights + found.entropy - 0.1 * found.logsumexp + found.mean_logp).sum().backward()
    values = [found.logp, found.entropy, found.logsumexp, found.mean_logp, *found.top_logp.unbind(1)]
    return form, torch.stack(values).detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


CASES = [(name, reshard) for name in ("llama", "gemma2") for reshard in (True, False)]


def sharded(rank: int, name: str, reshard: bool) -> Found:
    """What a rank learns with every layer sharded, and the root with what the layers leave."""
    model, mesh = tiny(name), init_device_mesh("cpu", (RANKS,))
    layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard)
    held = [p.to_local().numel() for p in model.parameters() if isinstance(p, DTensor)]
    assert sum(held) < 0.6 * sum(p.numel() for p in model.parameters())
    form, values, gradients = learnt(model, rank)
    return form, values, {n: g.full_tensor() for n, g in gradients.items() if isinstance(g, DTensor)}


def run_rank(rank: int, folder: str) -> None:
    """All cases of one rank."""
    distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=RANKS)
    with mock.patch.object(logprobs, "CHUNK_LOGITS", 29 * 2):  # two tokens: several checkpoints
        torch.save([sharded(rank, *case) for case in CASES], f"{folder}/{rank}")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def found_by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[list[Found]]:
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(run_rank, folder, RANKS)
    return [torch.load(folder / str(rank)) for rank in range(RANKS)]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_sharded_parameters_have_the_whole_models_values_and_gradients(
    case: int, found_by_rank: list[list[Found]]
) -> None:
    name, _ = CASES[case]
    whole = [learnt(tiny(name), rank) for rank in range(RANKS)]
    for rank, (form, values, gradients) in enumerate(whole):
        found_form, found, found_gradients = found_by_rank[rank][case]
        assert found_form == form == FORMS[name]
        torch.testing.assert_close(found, values)
        assert found_gradients.keys() == gradients.keys()
        for parameter, gradient in found_gradients.items():
            # FSDP2 takes the mean over ranks.
            mean = sum(each[2][parameter] for each in whole) / RANKS
            torch.testing.assert_close(gradient, mean, atol=1e-5, rtol=1e-5)
