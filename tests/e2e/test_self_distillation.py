"""Self-distillation behind a hint or critique, and teachers by domain, by the real program: log-probs a second way."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

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


def plain(policy: Policy, prompt: list[int], target: list[int], temperature: float) -> list[float]:
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.double() / temperature, -1)[range(len(target)), target].tolist()


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
        assert found[row["rollout_id"]] == pytest.approx(plain(policy, prompt, target, 0.7), abs=1e-3)
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


def test_each_domain_has_the_teacher_that_the_recipe_names(program: Program, policy: Policy) -> None:
    folder = program.home / "expert"
    shutil.copytree(SAMPLES / "policy", folder)
    weights = load_file(folder / "model.safetensors")
    drawn = torch.Generator().manual_seed(7)
    moved = {name: each + 0.02 * torch.randn(each.shape, generator=drawn) for name, each in weights.items()}
    save_file(moved, folder / "model.safetensors", {"format": "pt"})
    domains = ["chain_sum/2", "chain_sum/3", "chain_sum/4"]
    routed = f'update.teachers.expert={{"problem.domain"={json.dumps(domains)}}}'
    words = ("teacher=bundled", "roles.expert.policy=expert", routed)
    sets = (word for text in (*SMALL, *words) for word in ("--set", text))
    program.json("train", str(RECIPE), "--method", "mopd", *sets, "--run", "mopd")
    query = "select value from metrics where name = 'policy/teacher_gap' and step is null"
    ((gap,),) = program.json("sql", query, "--run", "mopd")["rows"]
    rollouts, problems = made(program, "mopd", "rollout", "train"), program.rows("problems/*")
    of_domain = {row["problem_id"] for row in problems if row["domain"] in domains}
    other, total, size, taught = load_policy(folder), 0.0, 0, 0
    for row in rollouts:
        size += len(row["completion_tokens"])
        if row["problem_id"] in of_domain:  # the policy is the usual teacher itself in its first round
            ours, his = (plain(each, row["prompt_tokens"], row["completion_tokens"], 0.7) for each in (policy, other))
            total, taught = total + sum(ours) - sum(his), taught + 1
    assert 0 < taught < len(rollouts)
    assert gap == pytest.approx(total / size, abs=2e-3)
    assert abs(total / size) > 0.05
