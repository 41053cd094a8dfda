"""Files of a train state that two and three ranks write together: the bytes of one process, digests, a full disk."""

import hashlib
import resource
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, distributed

from gradus.data.errors import GradusError
from gradus.models.training.parallel import ALONE, Ranks, gathered, mesh_of
from gradus.models.training.state import TrainState
from gradus.models.training.tensor_files import Collect, tensor_files
from gradus.models.training.train_state_files import train_state_files
from gradus.tasks.artifacts.weights import written
from tests.models.training.parallel.cases import SETTINGS, Case, on_ranks, state_of

WORLDS = (2, 3)
FILE_BYTES = 5000
"""The model's weights make some ten files of it."""


def stepped(ranks: Ranks) -> TrainState:
    """A train state after one step with gradients that are a function of the weights, whole or divided."""
    state = state_of(Case(replace(SETTINGS, ema_decay=0.5)), ranks.mesh)
    for master in state.masters.values():
        master.grad = master.detach() * 0.5 + 0.25
    state.advance()
    return state


def files_of(state: TrainState) -> Mapping[str, Collect]:
    """The files of a train state, and its weights once more in many small ones."""
    return {**tensor_files("weights", state.masters, None, FILE_BYTES), **train_state_files(state, masters=True)}


def run_rank(rank: int, folder: str) -> None:
    """Write the files among two ranks and then among three, and with a rank whose disk takes no more."""
    for num_ranks in WORLDS:
        if rank < num_ranks:
            meet = f"file://{folder}/meet{num_ranks}"
            distributed.init_process_group("gloo", meet, rank=rank, world_size=num_ranks)
            ranks = Ranks(rank, num_ranks, mesh=mesh_of(num_ranks, torch.device("cpu")))
            state = stepped(ranks)
            entries = written(files_of(state), made(folder, f"of{num_ranks}", ranks), ranks)
            said = "".join(f"{e.name} {e.sha256} {e.bytes}\n" for e in sorted(entries, key=lambda e: e.name))
            Path(folder, f"entries-{rank}of{num_ranks}").write_text(said)
            on_a_full_disk(state, folder, ranks)
            distributed.destroy_process_group()


def on_a_full_disk(state: TrainState, folder: str, ranks: Ranks) -> None:
    """Only the last rank's disk is full; every rank says what it raises."""
    ends_full = made(folder, f"full{ranks.num_ranks}", ranks)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if ranks.rank == ranks.num_ranks - 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES // 4, before[1]))
    try:
        written(tensor_files("weights", state.masters, None, FILE_BYTES), ends_full, ranks)
    except GradusError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        Path(folder, f"raised-{ranks.rank}of{ranks.num_ranks}").write_text(f"{type(error).__name__}: {error}")
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def made(folder: str, name: str, ranks: Ranks) -> Path:
    if ranks.writes:
        Path(folder, name).mkdir()
    return Path(folder, name)


@pytest.fixture(scope="module")
def found_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks(run_rank, folder, max(WORLDS))
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    written(files_of(stepped(ALONE)), folder, ALONE)
    return folder


def test_one_process_writes_each_weight_once_and_in_order(alone: Path) -> None:
    weights = stepped(ALONE).masters
    paths = sorted(alone.glob("weights-*"))
    assert len(paths) > max(WORLDS)
    saved = [load_file(path) for path in paths]
    assert [set(part) for part in saved] == divided_by_size(weights)
    for part in saved:
        assert all(torch.equal(tensor, weights[name]) for name, tensor in part.items())


def divided_by_size(weights: Mapping[str, Tensor]) -> list[set[str]]:
    """Names by file: one more begins where FILE_BYTES would be exceeded."""
    parts, size = [set[str]()], 0
    for name, weight in weights.items():
        num_bytes = 4 * int(np.prod(weight.shape))
        if parts[-1] and size + num_bytes > FILE_BYTES:
            parts.append(set())
            size = 0
        parts[-1].add(name)
        size += num_bytes
    return parts


@pytest.mark.parametrize("num_ranks", WORLDS)
def test_ranks_write_the_bytes_of_one_process_and_every_rank_knows_their_digests(
    num_ranks: int, found_in: Path, alone: Path
) -> None:
    folder = found_in / f"of{num_ranks}"
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in alone.iterdir())
    expected = ""
    for path in sorted(alone.iterdir()):
        content = path.read_bytes()
        assert (folder / path.name).read_bytes() == content, path.name
        expected += f"{path.name} {hashlib.sha256(content).hexdigest()} {len(content)}\n"
    for rank in range(num_ranks):
        assert (found_in / f"entries-{rank}of{num_ranks}").read_text() == expected


@pytest.mark.parametrize("num_ranks", WORLDS)
def test_a_rank_whose_disk_is_full_ends_all_with_its_sentence(num_ranks: int, found_in: Path) -> None:
    said = [(found_in / f"raised-{rank}of{num_ranks}").read_text() for rank in range(num_ranks)]
    assert len(set(said)) == 1
    # The last rank writes the last one of the first `num_ranks` files.
    first = next((found_in / f"of{num_ranks}").glob(f"weights-{num_ranks:05d}-of-*")).name
    assert said[0].startswith(f"StageError: {found_in}/full{num_ranks}/{first} cannot be written: ")
    assert "File too large" in said[0]
    assert "what is finished is kept" in said[0]
    there = {path.name for path in (found_in / f"full{num_ranks}").iterdir()}
    assert first not in there
    assert not any(name.startswith(".") for name in there)
    assert next((found_in / f"of{num_ranks}").glob("weights-00001-of-*")).name in there


def test_a_tensor_that_is_not_divided_stays_where_it_is() -> None:
    tensor = torch.arange(3.0)
    assert gathered(tensor, 1) is tensor
