"""An adapter from the program: trained, killed, resumed, gone on from, exported as it is and merged."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gradus
from gradus.data.lake.store import Ref, Store
from gradus.models.policy import load_policy
from tests.e2e.conftest import RECIPE, Program

LORA = ("--set", "update.lora={rank=4, alpha=8}", "--set", "update.lr=2e-3", "--set", "update.minibatch_groups=4")
LORA += ("--set", "update.kl_coef=0.01")
BUNDLED = Path(__file__).parents[2] / "data" / "samples" / "policy"
TRAIN = ("train", str(RECIPE), "--rounds", "2", *LORA)


@pytest.fixture(scope="module")
def trained(new_program: Callable[..., Program]) -> tuple[Program, dict[str, Any]]:
    """Trained on the bundled policy in a folder of the user's."""
    program = new_program(warm=True)
    shutil.copytree(BUNDLED, program.home / "model")
    return program, program.json(*TRAIN, "--set", "policy=model")


def test_a_killed_training_of_an_adapter_ends_as_an_undisturbed_one(
    trained: tuple[Program, dict[str, Any]], new_program: Callable[..., Program]
) -> None:
    """Killed in the second round's update, between two steps."""
    calm, answer = trained
    killed = new_program(warm=True)
    code, _, err = killed.run(*TRAIN, GRADUS_FAULT="update:after_step#6")
    assert code == 1, err
    assert "gradus" in err
    again = killed.json(*TRAIN)
    assert again["policy"] == answer["policy"]
    there, wanted = (
        {name: content for name, content in program.manifests().items() if name.startswith("checkpoints/")}
        for program in (killed, calm)
    )
    assert there.keys() == wanted.keys()
    assert len(there) == 3  # the base and an adapter a round
    differing = {name for name in there if there[name] != wanted[name]}
    assert differing == {f"checkpoints/{bases(calm, answer)}"}  # by what the users called it


def test_an_adapter_goes_out_merged_for_transformers_and_as_it_is_for_peft(
    trained: tuple[Program, dict[str, Any]], tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM

    program, answer = trained
    sampled = load_policy(program.home / "lake" / answer["policy"])
    base = load_policy(BUNDLED)
    ids = sampled.tokenizer("12 + 5 =", return_tensors="pt").input_ids
    found = program.json("export", answer["policy"], "--merge", "--to", str(tmp_path / "merged"))
    names = {path.name for path in (tmp_path / "merged").iterdir()}
    assert set(found["files"]) == names
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").get_vocab() == sampled.tokenizer.get_vocab()
    found = program.json("export", answer["policy"], "--to", str(tmp_path / "adapter"))
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "README.md"} <= set(found["files"])
    adapter = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert "PeftModel" in (tmp_path / "adapter" / "README.md").read_text()
    with torch.no_grad():
        expected = sampled.model(ids).logits
        assert torch.equal(merged(ids).logits, expected)
        assert torch.allclose(adapter(ids).logits, expected, atol=1e-4)
        assert not torch.allclose(base.model(ids).logits, expected, atol=1e-4)


def test_an_exported_adapter_calls_its_base_as_the_user_did_or_as_the_command_says(
    trained: tuple[Program, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import AutoPeftModelForCausalLM

    program, answer = trained
    monkeypatch.setenv("GRADUS_HOME", str(program.home))
    monkeypatch.chdir(program.home)  # where the training was told of its policy
    lake = program.home / "lake"
    folder, elsewhere = program.home / "model", tmp_path / "elsewhere"

    def called(name: str, base: str | None = None) -> tuple[str, str | None]:
        gradus.export(answer["policy"], tmp_path / name, base=base)
        config = json.loads((tmp_path / name / "adapter_config.json").read_text())
        found = config["base_model_name_or_path"], config["revision"]
        assert f"`{'@'.join(filter(None, found))}`" in (tmp_path / name / "README.md").read_text()
        return found

    assert called("as named") == (str(folder), None)
    folder.rename(elsewhere)
    assert called("as kept") == (str(lake / "checkpoints" / bases(program, answer)), None)
    assert called("on the hub", "someone/model@1a2b3c") == ("someone/model", "1a2b3c")
    assert called("as said", str(elsewhere)) == (str(elsewhere), None)
    policy = load_policy(lake / answer["policy"])
    ids = policy.tokenizer("12 + 5 =", return_tensors="pt").input_ids
    with torch.no_grad():
        found = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "as said")(ids).logits
        assert torch.allclose(found, policy.model(ids).logits, atol=1e-4)
    elsewhere.rename(folder)
    whole = f"checkpoints/{bases(program, answer)}"
    for what, options, sentence in (
        (whole, {"base": "x"}, "is a whole policy: it has no base to name"),
        (whole, {"merge": True}, "is a whole policy: there is nothing to merge"),
        (answer["policy"], {"base": "x", "merge": True}, "--base goes with an adapter that is not merged"),
        (answer["policy"], {"base": " "}, "--base is empty"),
        (answer["run"], {"base": "x", "as_": "verl"}, "--base goes with a checkpoint"),
    ):
        with pytest.raises(gradus.GradusError, match=sentence):
            gradus.export(what, tmp_path / "x", **options)


def bases(program: Program, answer: dict[str, Any]) -> str:
    config = json.loads((program.home / "lake" / answer["policy"] / "adapter_config.json").read_text())
    return Path(config["base_model_name_or_path"]).name


def test_training_goes_on_from_an_adapter_and_the_merged_policy_is_a_policy_like_any_other(
    trained: tuple[Program, dict[str, Any]],
) -> None:
    program, answer = trained
    further = ("--set", "name=further", "--set", f"policy={answer['policy']}")
    found = program.json("train", str(RECIPE), *further, *LORA)
    store = Store(program.home / "lake")
    assert store.manifest(Ref.parse(found["policy"])).parents["base"] == [f"checkpoints/{bases(program, answer)}"]
