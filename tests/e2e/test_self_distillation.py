"""Self-distillation behind a hint and behind a critique, by the real program: contexts and log-probs a second way."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradus.models.policy import Policy, load_policy, prompt_text, prompt_tokens
from tests.e2e.conftest import RECIPE, SAMPLES, Program

SMALL = ("evaluate.every=1", "curate.draw=8", "curate.sample.max_tokens=40", "curate.sample.temperature=0.7")
SHORT = 'measures=[{name="privileged", role="start", template="{question}\\n%s\\n"}]'


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    return new_program(warm=True)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(SAMPLES / "policy")


def trained(program: Program, method: str, place: str, *sets: str) -> None:
    words = (word for text in (*SMALL, SHORT % place, *sets) for word in ("--set", text))
    program.json("train", str(RECIPE), "--method", method, *words, "--run", method)


def made(program: Program, run: str, stage: str, purpose: str) -> list[dict[str, Any]]:
    """The rows of a stage of round 1."""
    events = [e for e in program.events(run) if e["event"] in ("stage_started", "stage_reused") and e["stage"] == stage]
    (output,) = {e["output"] for e in events if e["purpose"] == purpose}
    return program.rows(output)


def refuse_others(
    program: Program, run: str, policy: Policy, shown: dict[str, str], rollouts: list[dict[str, Any]]
) -> int:
    """Compare the measure of each rollout with a plain pass behind its text; return how many have one."""
    problems = {row["problem_id"]: row["question"] for row in program.rows("problems/*")}
    found = {row["rollout_id"]: row["privileged.logp"] for row in made(program, run, "measure", "privileged")}
    assert found.keys() == {row["rollout_id"] for row in rollouts}
    assert {name for name, values in found.items() if values} == shown.keys()
    for row in [row for row in rollouts if row["rollout_id"] in shown][::7]:
        text = f"{problems[row['problem_id']]}\n{shown[row['rollout_id']]}\n"
        (prompt,), target = (
            prompt_tokens(policy.tokenizer, [prompt_text(policy.tokenizer, text)]),
            row["completion_tokens"],
        )
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits.double() / 0.7, -1)[range(len(target)), target]
        assert found[row["rollout_id"]] == pytest.approx(logp.tolist(), abs=1e-3)
    return len(shown)


def test_the_strongest_hint_of_each_problem_is_shown(program: Program, policy: Policy) -> None:
    trained(program, "opsd_hint", "{hint}")
    rollouts = made(program, "opsd_hint", "rollout", "train")
    strongest: dict[str, str] = {}
    for hint in sorted(made(program, "opsd_hint", "hint", "train"), key=lambda row: row["level"]):
        strongest[hint["problem_id"]] = hint["text"]
    shown = {row["rollout_id"]: strongest[row["problem_id"]] for row in rollouts if row["problem_id"] in strongest}
    assert refuse_others(program, "opsd_hint", policy, shown, rollouts) == 32
    assert not any(row["hint_text"] for row in rollouts)  # the policy itself is shown none


def test_the_critique_of_an_answer_is_shown_to_its_teacher_alone(program: Program, policy: Policy) -> None:
    critique = 'waves=[{name="critique", most=2, template="{question}"}]'
    trained(program, "sdpo_critique", "{critique}", critique)
    rollouts = made(program, "sdpo_critique", "rollout", "train")
    said = {row["about"][0]: row["completion"] for row in made(program, "sdpo_critique", "rollout", "critique1")}
    wrong = [row["rollout_id"] for row in made(program, "sdpo_critique", "score", "train") if row["correct"] is False]
    assert set(said) <= set(wrong)
    assert 0 < refuse_others(program, "sdpo_critique", policy, said, rollouts) < len(rollouts)
