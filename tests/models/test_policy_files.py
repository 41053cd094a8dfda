"""A policy folder looked at without torch: a kind of model that nobody knows, an embedding of another shape."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gradus.data.package import package_file
from gradus.models.policy_files import FileError, head_fault, num_scores, refuse_broken

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


@pytest.mark.parametrize(
    ("config", "num"),
    [
        ({}, 0),
        ({"architectures": None}, 0),
        ({"architectures": ["LlamaForTokenClassification"], "id2label": {"0": "a"}}, 0),
        ({"architectures": ["LlamaForSequenceClassification"]}, 2),  # what transformers leaves out
        ({"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}, 1),
        ({"architectures": ["LlamaForSequenceClassification"], "num_labels": 1}, 1),
        ({"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}, 3),
    ],
)
def test_the_head_is_known_by_the_configuration(tmp_path: Path, config: dict[str, Any], num: int) -> None:
    folder = changed(tmp_path / "scorer", **config)
    assert num_scores(folder) == num
    assert bool(head_fault(folder, scalar=False)) == (num > 0)
    assert bool(head_fault(folder, scalar=True)) == (num != 1)
    assert num_scores(tmp_path) == 0  # an adapter has no configuration of its own
