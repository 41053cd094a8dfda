"""Deterministic algorithms: what they do, and that nothing of them is left behind."""

import os
from typing import Any

import pytest
import torch

from gradus.data.errors import StageError
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.stages.update.work import deterministic

House = Any


def nondeterministic() -> None:
    """An operation that PyTorch refuses among deterministic ones."""
    torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("before", [False, True])
def test_deterministic_algorithms_are_demanded_for_a_while(before: bool) -> None:
    torch.use_deterministic_algorithms(before, warn_only=before)
    try:
        with deterministic(wanted=True):
            assert torch.are_deterministic_algorithms_enabled()
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled() is before
        assert torch.is_deterministic_algorithms_warn_only_enabled() is before
    finally:
        torch.use_deterministic_algorithms(False)


def test_an_operation_without_one_ends_the_update_in_a_sentence() -> None:
    with deterministic(wanted=False):
        nondeterministic()
    message = r"^put_ does not have a deterministic implementation.*set update\.deterministic=false"
    with pytest.raises(StageError, match=message), deterministic(wanted=True):
        nondeterministic()
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="something else"), deterministic(wanted=True):
        raise RuntimeError("something else")


@pytest.mark.parametrize("user", [None, ":16:8"])
def test_the_workspace_of_cublas_is_set_where_a_gpu_is_used_and_the_users_own_stays(
    monkeypatch: pytest.MonkeyPatch, user: str | None
) -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.delenv(name, raising=False)
    with deterministic(wanted=True):
        assert name not in os.environ
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    if user:
        monkeypatch.setenv(name, user)
    with deterministic(wanted=True):
        assert os.environ[name] == (user or ":4096:8")
    assert os.environ.get(name) == user


def test_an_update_among_deterministic_algorithms_has_the_bits_of_a_plain_one_on_a_cpu(house: House) -> None:
    plain, _ = house.update(house.rows(), house.rewards, **house.steps)
    strict, _ = house.update(house.rows(), house.rewards, **house.steps, deterministic=True)
    assert house.same_files(plain, strict)
    assert not torch.are_deterministic_algorithms_enabled()


def test_determinism_is_part_of_an_identity() -> None:
    assert UpdateConfig(deterministic=True).identified() == {**UpdateConfig().identified(), "deterministic": True}
