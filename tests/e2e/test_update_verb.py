"""`gradus update` with the settings of its train state, and what is done with what it leaves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from gradus.models.policy import load_policy, saved_dtype

Program = Any
BUNDLED = Path(__file__).parents[2] / "data" / "samples" / "policy"


def judged(program: Program, folder: Path, policy: str = "bundled") -> tuple[str, ...]:
    """Arguments that name rollouts of a policy, their scores and the policy."""
    problems, plan, scores = folder / "p.jsonl", folder / "plan.jsonl", folder / "s.jsonl"
    problems.write_text(json.dumps({"problem_id": "a", "question": "1 + 1 =", "answer": "2"}) + "\n")
    row = {"problem_id": "a", "group_id": "a@r0h0", "n": 4, "max_tokens": 4}
    plan.write_text(json.dumps(row) + "\n")
    found = program.json("rollout", "--plan", str(plan), "--problems", str(problems), "--policy", policy)
    prefix = found["artifact"].partition("/")[2][:16]
    rows = [{"rollout_id": f"{prefix}:a@r0h0:{i}", "problem_id": "a", "reward": float(i == 0)} for i in range(4)]
    scores.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return "--rollouts", found["artifact"], "--scores", str(scores), "--policy", policy


def test_an_average_is_evaluated_by_name(new_program: Callable[..., Program], tmp_path: Path) -> None:
    program = new_program()
    given = judged(program, tmp_path)
    sets = ("dtype=bfloat16", "saved_dtype=bfloat16", "ema_decay=0.9", "optimizer=sgd")
    flags = [word for each in sets for word in ("--set", each)]
    checkpoint = program.json("update", *given, *flags)["artifact"]
    folder = program.home / "lake" / checkpoint
    assert saved_dtype(folder) == saved_dtype(folder / "ema") == "bfloat16"
    found = program.json(
        *("evaluate", "--problems", str(tmp_path / "p.jsonl"), "-n", "2", "--reward", "numeric"),
        *("--policy", f"{checkpoint}/ema"),
    )
    assert found["rows"] == 1


def test_what_does_not_fit_is_one_sentence_and_loses_nothing(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    program = new_program()
    given = judged(program, tmp_path)
    checkpoint = program.json("update", *given)["artifact"]
    policy = load_policy(BUNDLED)
    policy.tokenizer.add_tokens(["<step>"])
    policy.model.save_pretrained(tmp_path / "grown")
    policy.tokenizer.save_pretrained(tmp_path / "grown")
    lake = program.home / "lake"
    before = {path: path.read_bytes() for path in lake.glob("*/*/*") if path.is_file()}
    plan = ("--plan", str(tmp_path / "plan.jsonl"), "--problems", str(tmp_path / "p.jsonl"))
    for command, exit_code, sentence in (
        (("update", *given, "--set", "optimizer=Sgd"), 2, "there is no optimizer 'Sgd'"),
        (
            ("update", *given[:4], "--policy", checkpoint, "--set", "optimizer=sgd", "--set", "max_age=9"),
            1,
            "set update.optimizer=adamw; for a fresh optimiser train what `gradus export",
        ),
        (
            ("rollout", *plan, "--policy", str(tmp_path / "grown")),
            1,
            "more tokens than the model has embeddings, 24 and 23",
        ),
    ):
        code, out, err = program.run(*command)
        assert (code, out) == (exit_code, ""), err
        assert sentence in " ".join(err.split()), err
        assert "Traceback" not in err
    assert all(path.read_bytes() == content for path, content in before.items())


def test_an_update_on_two_ranks_is_that_of_one_process_and_what_ranks_cannot_do_is_refused(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    weights: list[dict[str, torch.Tensor]] = []
    for number in (1, 2):
        program = new_program()
        given = judged(program, tmp_path)
        checkpoint = (
            program.home / "lake" / program.json("update", *given, "--set", f"launch.processes={number}")["artifact"]
        )
        weights.append(load_file(checkpoint / "model.safetensors"))
    manifest = json.loads((checkpoint / "_manifest.json").read_text())
    assert manifest["config"]["launch"]["processes"] == 2
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-5, rtol=1e-5)
    for setting, sentence in (
        ("optimizer=adamw_8bit", "adamw_8bit needs, and a rank has a part"),
        ("launch.hosts=2", "set rendezvous"),
    ):
        code, out, err = program.run("update", *given, "--set", "launch.processes=2", "--set", setting)
        assert (code, out) == (2, ""), err
        assert sentence in " ".join(err.split()), err
        assert "Traceback" not in err
