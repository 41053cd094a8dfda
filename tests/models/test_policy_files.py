"""A policy folder looked at without torch: a kind of model that nobody knows, an embedding of another shape."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gradus.data.package import package_file
from gradus.models.policy_files import FileError, refuse_broken

BUNDLED = package_file("data", "samples") / "policy"


def changed(folder: Path, **config: Any) -> Path:
    """Copy the bundled policy with other values in its config.json."""
    shutil.copytree(BUNDLED, folder)
    body = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**body, **config}))
    return folder


def test_a_kind_of_model_that_transformers_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"odd/config\.json: model_type 'nonesuch' is no model"):
        refuse_broken(changed(tmp_path / "odd", model_type="nonesuch"))
    for kind in ("qwen2", "qwen2_5_vl", "gpt-sw3"):  # a vision model answers texts behind a server
        refuse_broken(changed(tmp_path / kind, model_type=kind))
    refuse_broken(changed(tmp_path / "own", model_type="nonesuch", auto_map={"AutoConfig": "own.Config"}))


def test_an_embedding_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"has the shape \[23, 128\], where config\.json says \[23, 64\]"):
        refuse_broken(changed(tmp_path / "narrow", hidden_size=64))
    with pytest.raises(FileError, match=r"has the shape \[23, 128\], where config\.json says \[22, 128\]"):
        refuse_broken(changed(tmp_path / "short", vocab_size=22))
    refuse_broken(changed(tmp_path / "packed", hidden_size=64, quantization_config={"quant_method": "awq"}))
    refuse_broken(BUNDLED)
