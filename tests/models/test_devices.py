"""What a setting means by a device, what counts as out of memory, and the same numbers on a device as on the CPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradus.models.devices import DeviceError, give_back, is_out_of_memory, resolve_device
from gradus.tasks.artifacts.weights import oom_as_stage_error

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]


@pytest.mark.parametrize("device", ["elsewhere", "cuda"])
def test_the_numbers_of_another_device_are_those_of_the_cpu(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU here: only the stand-in for one was tested")
    environment = {**os.environ, "GRADUS_TEST_DEVICE": device, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "another_device.py")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "11 passed" in ran.stdout


def test_what_a_setting_means(monkeypatch: pytest.MonkeyPatch) -> None:
    for seen, found in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda seen=seen: seen)
        assert resolve_device("auto") == torch.device(found)
        assert resolve_device("cpu") == torch.device("cpu")
    assert resolve_device("cuda") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"cuda needs a GPU, and PyTorch 2\.\S+ sees none here"):
        resolve_device("cuda")


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_what_counts_as_out_of_memory(error: Exception, is_it: bool) -> None:
    assert is_out_of_memory(error) is is_it


def test_memory_is_given_back_where_a_gpu_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(True))
    give_back()
    assert calls == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with oom_as_stage_error("this", "hint"):
        assert calls == []
    assert calls == [True]
