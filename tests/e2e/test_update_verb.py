"""`gradus update` with the settings of its train state, and what is done with what it leaves."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradus.models.policy import load_policy, saved_dtype
from tests.e2e.conftest import Program

BUNDLED = Path(__file__).parents[2] / "data" / "samples" / "policy"


@dataclass(frozen=True)
class Place:
    """Rollouts and scores in the home of a program, and the checkpoint that it made of them."""

    program: Program
    folder: Path
    given: tuple[str, ...]
    """Arguments that name the rollouts, their scores and the policy."""
    checkpoint: str


@pytest.fixture(scope="module")
def place(new_program: Callable[..., Program], tmp_path_factory: pytest.TempPathFactory) -> Place:
    program, folder = new_program(warm=True), tmp_path_factory.mktemp("update")
    problems, plan, scores = folder / "p.jsonl", folder / "plan.jsonl", folder / "s.jsonl"
    problems.write_text(json.dumps({"problem_id": "a", "question": "1 + 1 =", "answer": "2"}) + "\n")
    row = {"problem_id": "a", "group_id": "a@r0h0", "n": 4, "max_tokens": 4}
    plan.write_text(json.dumps(row) + "\n")
    found = program.json("rollout", "--plan", str(plan), "--problems", str(problems), "--policy", "bundled")
    prefix = found["artifact"].partition("/")[2][:16]
    rows = [{"rollout_id": f"{prefix}:a@r0h0:{i}", "problem_id": "a", "reward": float(i == 0)} for i in range(4)]
    scores.write_text("".join(json.dumps(each) + "\n" for each in rows))
    given = ("--rollouts", found["artifact"], "--scores", str(scores), "--policy", "bundled")
    return Place(program, folder, given, program.json("update", *given)["artifact"])


def test_an_average_is_evaluated_by_name_with_intervals_for_every_k(place: Place) -> None:
    program, given = place.program, place.given
    sets = ("dtype=bfloat16", "saved_dtype=bfloat16", "ema_decay=0.9", "optimizer=sgd")
    flags = [word for each in sets for word in ("--set", each)]
    checkpoint = program.json("update", *given, *flags)["artifact"]
    folder = program.home / "lake" / checkpoint
    assert saved_dtype(folder) == saved_dtype(folder / "ema") == "bfloat16"
    found = program.json(
        *("evaluate", "--problems", str(place.folder / "p.jsonl"), "-n", "2", "--reward", "numeric"),
        *("--policy", f"{checkpoint}/ema"),
    )
    assert found["rows"] == 1
    assert set(found["pass_at"]) == {"1", "2"}
    assert all(cell["low"] <= cell["value"] <= cell["high"] for cell in found["pass_at"].values())
    assert {"maj_at", "out"} <= set(found)


def test_what_does_not_fit_is_one_sentence_and_loses_nothing(place: Place, tmp_path: Path) -> None:
    program, given, checkpoint = place.program, place.given, place.checkpoint
    policy = load_policy(BUNDLED)
    policy.tokenizer.add_tokens(["<step>"])
    policy.model.save_pretrained(tmp_path / "grown")
    policy.tokenizer.save_pretrained(tmp_path / "grown")
    lake = program.home / "lake"
    before = {path: path.read_bytes() for path in lake.glob("*/*/*") if path.is_file()}
    plan = ("--plan", str(place.folder / "plan.jsonl"), "--problems", str(place.folder / "p.jsonl"))
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
