"""Deterministic algorithms and profiler traces: what they do, and that nothing of them is left behind."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradus.data.errors import StageError
from gradus.data.lake.store import Ref
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.runs.profiles import keep_trace, kept_trace, trace_of
from gradus.tasks.stages.update.conditions import deterministic, profiled

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


def events(trace: Path) -> list[dict[str, Any]]:
    with gzip.open(trace, "rt") as file:
        return json.load(file)["traceEvents"]


def test_a_trace_opens_as_json_and_names_the_models_matrix_products(house: House, tmp_path: Path) -> None:
    plain, _ = house.update(house.rows(), house.rewards, **house.steps)
    folder, _ = house.update(house.rows(), house.rewards, **house.steps, profile=True)
    found = events(trace_of(folder))
    products = [each for each in found if each.get("name") in ("aten::mm", "aten::addmm")]
    shapes = {str(each["args"].get("Input Dims", "")) for each in products}
    assert any("[32, 96]" in shape or "[96, 32]" in shape for shape in shapes), shapes  # the MLP: 32 to 3 x 32
    assert [each for each in found if "SdpaBackward" in str(each.get("name")) or "Backward" in str(each.get("name"))]
    assert house.same_files(folder, plain, frozenset({trace_of(folder).name}))
    manifest = house.store.verify(Ref("checkpoints", folder.name))
    assert not [file.name for file in manifest.files if "profile" in file.name]
    keep_trace(folder, tmp_path, "update-1-00")
    assert events(kept_trace(tmp_path, "update-1-00")) == found
    assert not trace_of(folder).exists()
    keep_trace(folder, tmp_path, "update-1-01")
    assert not kept_trace(tmp_path, "update-1-01").exists()


def test_only_the_first_steps_are_profiled_and_a_failure_leaves_its_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"

    def steps(count: int, fail: Callable[[], None] = lambda: None) -> list[int]:
        with profiled(path) as after_step:
            for size in range(count):
                torch.ones(size + 1).cumsum(0)
                after_step()
            fail()
        sizes = [each["args"]["Input Dims"][0][0] for each in events(path) if each.get("name") == "aten::cumsum"]
        return sorted(set(sizes))

    assert steps(5) == [1, 2, 3]
    assert steps(2) == [1, 2]

    def fail() -> None:
        raise KeyError

    path.unlink()
    with pytest.raises(KeyError):
        steps(1, fail)
    assert events(path)


def test_a_profile_is_no_part_of_an_identity_and_determinism_is() -> None:
    plain = UpdateConfig().identified()
    assert UpdateConfig(profile=True).identified() == plain
    assert UpdateConfig(deterministic=True).identified() == {**plain, "deterministic": True}
