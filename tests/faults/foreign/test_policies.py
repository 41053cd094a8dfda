"""Policies and checkpoints from somebody else: their links, indices, bases and train states lead nowhere else."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gradus.data.lake.store import Ref, Store
from gradus.tasks.preflight.checks import SAMPLES
from tests.faults.foreign.gifts import DIGEST, Place, sealed


def policy_attacks() -> dict[str, Callable[[Path, Path], None]]:
    """What is done to a plain folder of a policy."""

    def index(policy: Path, canary: Path) -> None:
        shutil.copy(policy / "model.safetensors", canary.parent / "other.safetensors")
        named = {"weight_map": {"lm_head.weight": "../other.safetensors"}}
        (policy / "model.safetensors.index.json").write_text(json.dumps(named))

    def link(policy: Path, canary: Path) -> None:
        (policy / "notes.txt").symlink_to(canary)

    def like_a_hub(policy: Path, canary: Path) -> None:
        (policy.parent.parent / "blobs").symlink_to(canary.parent)
        (policy / "notes.txt").symlink_to(policy.parent.parent / "blobs" / canary.name)

    def pipe(policy: Path, canary: Path) -> None:
        del canary
        os.mkfifo(policy / "tokenizer.model")

    def own_base(policy: Path, canary: Path) -> None:
        del canary
        config = {"peft_type": "LORA", "base_model_name_or_path": str(policy)}
        (policy / "adapter_config.json").write_text(json.dumps(config))

    def no_name(policy: Path, canary: Path) -> None:
        del canary
        (policy / "adapter_config.json").write_text('{"base_model_name_or_path": [1]}')

    def many_bases(policy: Path, canary: Path) -> None:
        del canary
        (policy / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "+" * 5000}))

    def deep(policy: Path, canary: Path) -> None:
        del canary
        (policy / "adapter_config.json").write_text("[" * 200_000)

    return {each.__name__: each for each in (index, link, like_a_hub, pipe, own_base, no_name, many_bases, deep)}


def update_with(policy: Path) -> tuple[str, ...]:
    return ("update", "--rollouts", "rows.jsonl", "--scores", "scores.jsonl", "--policy", str(policy))


@pytest.mark.parametrize("spoil", policy_attacks().values(), ids=policy_attacks())
def test_a_policy_that_leads_elsewhere_is_refused(
    place: Place, refused: Callable[..., str], spoil: Callable[[Path, Path], None]
) -> None:
    policy = place.root / "models--x" / "snapshots" / "0123"
    shutil.copytree(SAMPLES / "policy", policy)
    spoil(policy, place.canary)
    refused(*update_with(policy))
    assert not list(place.home.glob("lake/checkpoints/*"))


def test_a_snapshot_of_a_hub_is_taken_through_its_own_links(place: Place) -> None:
    policy, blobs = place.root / "models--x" / "snapshots" / "0123", place.root / "models--x" / "blobs"
    shutil.copytree(SAMPLES / "policy", blobs)
    policy.mkdir(parents=True)
    for path in blobs.iterdir():
        (policy / path.name).symlink_to(Path("../../blobs") / path.name)
    store = Store(place.home / "lake")
    assert store.adopt(policy) == store.adopt(SAMPLES / "policy")


def reseal(folder: Path, files: dict[str, bytes], **changed: object) -> None:
    """Put files into a checkpoint's folder and name them in its manifest."""
    body = json.loads((folder / "_manifest.json").read_bytes())
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        body["files"].append({"name": name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)})
        body["files"][-1]["rows"] = None
    (folder / "_manifest.json").write_bytes(sealed({**body, "identity": {}, **changed}))


@pytest.mark.parametrize(
    ("name", "base", "parents"),
    [
        ("adapter_config.json", "../../../policy", {}),
        ("adapter_config.json", "../../../policy", {"base": [f"checkpoints/{DIGEST}"]}),
        ("ema/adapter_config.json", f"../{DIGEST}", {"base": [f"checkpoints/{DIGEST}"]}),
        ("adapter_config.json", f"../{DIGEST}", {"base": [f"problems/{DIGEST}"]}),
        ("adapter_config.json", f"../{DIGEST}", {"base": [f"checkpoints/{DIGEST}"]}),
        ("adapter_config.json", "../OWN", {"base": ["checkpoints/OWN"]}),
        ("model.safetensors.index.json", "", {}),
    ],
)
def test_a_checkpoint_whose_files_lead_elsewhere_is_refused(
    place: Place, refused: Callable[..., str], name: str, base: str, parents: dict[str, list[str]]
) -> None:
    gift = place.give_policy()
    own = json.loads((gift / "_manifest.json").read_bytes())["digest"]
    config = {"base_model_name_or_path": base.replace("OWN", own), "weight_map": {"w": "/tmp/other.safetensors"}}
    named = {role: [text.replace("OWN", own) for text in texts] for role, texts in parents.items()}
    reseal(gift, {name: json.dumps(config).encode()}, parents=named)
    refused(*update_with(gift.rename(gift.with_name(own))))
    assert not list(place.home.glob("lake/checkpoints/*"))


def test_a_train_state_beside_a_gift_is_verified_before_anything_is_written(
    place: Place, refused: Callable[..., str]
) -> None:
    from gradus.data.lake.train_states import state_identity, state_ref

    gift = place.give_policy()
    ref = Ref("checkpoints", json.loads((gift / "_manifest.json").read_bytes())["digest"])
    theirs = Store(place.root / "theirs")
    writer = theirs.writer(state_ref(ref))
    writer.write_file("optimizer.safetensors", b"a state")
    writer.commit(identity=state_identity(ref))
    shutil.copytree(theirs.path(state_ref(ref)), gift / "train_state")
    (gift / "train_state" / "optimizer.safetensors").write_bytes(b"another")
    refused(*update_with(gift))
    (gift / "train_state" / "optimizer.safetensors").unlink()
    (gift / "train_state" / "optimizer.safetensors").symlink_to(place.canary)
    refused(*update_with(gift))
    assert not [*place.home.glob("lake/checkpoints/*"), *place.home.glob("lake/train_states/*")]
