"""Evidence of weights: checksums agree for the same policy in any number format, and catch one changed number."""

from pathlib import Path

import pytest
import torch

from gradus.models.policy import load_policy, new_policy
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.models.weight_check import fixed_set, verify_weights


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    policy = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=32, seed=0)
    policy.model.save_pretrained(tmp_path)
    policy.tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_loaded_policy_proves_itself(folder: Path, dtype: str) -> None:
    policy = load_policy(folder, dtype)  # pyright: ignore[reportArgumentType]
    assert verify_weights(dict(policy.model.state_dict()), folder) > 10


def test_one_changed_number_is_named(folder: Path) -> None:
    policy = load_policy(folder)
    with torch.no_grad():
        policy.model.get_parameter("model.layers.0.mlp.up_proj.weight")[3, 5] += 1e-4
    with pytest.raises(ValueError, match=r"1 of \d+ tensors are not those of .* \(first model.layers.0.mlp.up_proj"):
        verify_weights(dict(policy.model.state_dict()), folder)


def test_padded_rows_are_left_out_and_other_shapes_are_no_evidence(folder: Path) -> None:
    held = dict(load_policy(folder).model.state_dict())
    embedding = held["model.embed_tokens.weight"]
    padded = torch.cat([embedding, embedding.new_ones((9, embedding.shape[1]))])
    assert verify_weights({"model.embed_tokens.weight": padded}, folder) == 1
    with pytest.raises(ValueError, match="no tensor of the same name and shape"):
        verify_weights({"model.embed_tokens.weight": padded.T}, folder)


def test_the_set_begins_at_both_ends_of_the_model_and_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = {name: tuple(t.shape) for name, t in load_policy(folder).model.state_dict().items()}
    names = list(fixed_set(folder, held))
    assert names[0] == min(names)
    assert names[1] == max(names)
    monkeypatch.setattr("gradus.models.weight_check.EVIDENCE_BYTES", 1)
    assert len(fixed_set(folder, held)) == 1


def test_damaged_files_are_told_of(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be read"):
        fixed_set(folder, {"model.norm.weight": (16,)})
