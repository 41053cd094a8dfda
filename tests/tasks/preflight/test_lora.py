"""What an update with an adapter needs, refused before anything starts."""

import importlib.machinery
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradus.data.errors import UsageError
from gradus.tasks.config.learning import UPDATE, UpdateConfig
from gradus.tasks.preflight.checks import check_stage


def config(**settings: Any) -> UpdateConfig:
    return UpdateConfig.model_validate({"lora": {}, **settings})


def test_an_adapter_alone_is_fine_and_nothing_is_asked_of_an_update_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_stage(UPDATE, config(), {})
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "meta_path", [importlib.machinery.BuiltinImporter])
    monkeypatch.delitem(sys.modules, "peft")
    with pytest.raises(UsageError, match=r"update\.lora needs the package peft") as refused:
        check_stage(UPDATE, config(), {})
    assert refused.value.hint == "pip install 'gradus[lora]'"
    check_stage(UPDATE, UpdateConfig(), {})


def test_a_critic_trains_all_weights() -> None:
    with pytest.raises(UsageError, match=r"update\.advantage = gae trains a critic with all weights"):
        check_stage(UPDATE, config(advantage="gae"), {})


def test_a_base_in_4_bits_needs_bitsandbytes_and_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    quantised = config(lora={"quantize": "nf4"})
    if importlib.util.find_spec("bitsandbytes") is None:
        with pytest.raises(UsageError, match="nf4 needs the package bitsandbytes, which is not installed"):
            check_stage(UPDATE, quantised, {})
    (tmp_path / "bitsandbytes.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="nf4 computes on a GPU, and PyTorch sees none here"):
        check_stage(UPDATE, quantised, {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    check_stage(UPDATE, quantised, {})
    with pytest.raises(UsageError, match=r"and update\.device is cpu"):
        check_stage(UPDATE, config(lora={"quantize": "nf4"}, device="cpu"), {})
