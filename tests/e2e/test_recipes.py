"""Recipes for real models, run for two rounds with a tiny random model of the same architecture."""

import json
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from gradus.models.tiny_tokenizer import tiny_tokenizer
from tests.e2e.conftest import Program
from tests.patience import until

PARITY = """
def parity(rows):
    return [float(len(row["completion"]) % 2) for row in rows]
"""
ON_A_CPU = {
    "rollout.engine": "transformers",
    "rollout.max_truncated_frac": "1.0",
    "score.rewards": '[{name="parity.py:parity"}]',
    "curate.draw": "4",
    "curate.sample.max_tokens": "12",
    "evaluate.sample.max_tokens": "12",
    "evaluate.problems": "gsm8k-test.jsonl",
    "problems": "gsm8k-train.jsonl",
    "policy": "policy",
    "guards": "[]",
}
"""What a machine without a GPU, the model and the data sets otherwise; random weights are as uncertain as can be."""


def qwen(folder: Path) -> None:
    """Save a random Qwen2.5 policy in bfloat16 with a tokenizer of single characters."""
    tokenizer = tiny_tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def problem(number: int) -> dict[str, str]:
    """A problem in the form of GSM8K, of three steps."""
    steps = [f"Ann has {number}+3=<<{number}+3={number + 3}>>{number + 3}.", "Bob has 2.", f"Both: {number + 5}."]
    return {"question": f"Ann has {number} and buys 3.", "answer": "\n".join([*steps, f"#### {number + 5}"])}


def laid_out(program: Program) -> list[str]:
    """Write what the recipes name, tiny; return the changes that make them run here."""
    qwen(program.home / "policy")
    (program.home / "parity.py").write_text(PARITY)
    for name, numbers in (("train", range(2, 10)), ("test", range(20, 23))):
        lines = [problem(i) for i in numbers]
        (program.home / f"gsm8k-{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [word for key, value in ON_A_CPU.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.parametrize("recipe", ["qwen2.5-0.5b-gsm8k", "qwen2.5-1.5b-lora"])
def test_a_recipe_trains_for_two_rounds(new_program: Callable[..., Program], recipe: str) -> None:
    program = new_program(warm=True)
    told = program.json("train", recipe, "--rounds", "2", *laid_out(program))
    assert_trained(program, told)


def test_a_recipe_trains_for_two_rounds_on_two_hosts_though_the_first_is_killed(
    new_program: Callable[..., Program],
) -> None:
    program = new_program(warm=True)
    changes = laid_out(program)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    launch = f'{{ processes = 1, hosts = 2, rendezvous = "127.0.0.1:{port}" }}'
    for key, value in (("launch", launch), ("minibatch_groups", "2")):
        changes += ["--set", f"update.{key}={value}"]
    train = ["train", "qwen2.5-7b-8gpu", "--rounds", "2", "--run", "tiny", *changes]
    with joining(program) as guest, program.start(*train) as first_host:
        until(lambda: "taking part in checkpoints/" in (program.home / "guest").read_text(), wrong=program.told)
        first_host.kill()
        assert guest.wait(timeout=120) == 1
    assert "the run tiny is running by its journal, but no process works on it" in guest_told(program)
    with joining(program) as guest:
        told = program.json(*train)
        assert guest.wait(timeout=120) == 0, guest_told(program)
    assert (program.home / "joined").read_text() == "2 updates joined\n"
    (launch,) = (program.home / "runs" / "tiny" / "logs" / "launch").iterdir()  # the same ranks made both
    assert (launch / "host-1").exists()
    assert_trained(program, told, steps=2)


@contextmanager
def joining(program: Program) -> Generator["subprocess.Popen[bytes]"]:
    """Another host that joins the run."""
    command = [*program.command, "join", "tiny", "--wait-s", "300"]
    with (program.home / "joined").open("wb") as out, (program.home / "guest").open("wb") as err:
        guest = subprocess.Popen(command, env=program.environment(), cwd=program.home, stdout=out, stderr=err)
    try:
        yield guest
    finally:
        guest.kill()
        guest.wait()


def guest_told(program: Program) -> str:
    """What the other host said on stderr, without the breaks of its lines."""
    return " ".join((program.home / "guest").read_text().split())


def assert_trained(program: Program, told: dict[str, Any], steps: int = 1) -> None:
    assert told["updates"] == 2 * steps
    assert told["after"]["rows"] == 3
    lake = program.home / "lake"
    folder = lake / told["policy"]
    if (folder / "adapter_config.json").is_file():
        adapter = json.loads((folder / "adapter_config.json").read_text())
        assert (adapter["r"], adapter["lora_alpha"], len(adapter["target_modules"])) == (16, 32, 14)
        folder = folder / adapter["base_model_name_or_path"]
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == ("qwen2", "bfloat16")
