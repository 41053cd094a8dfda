"""Measures through the real program: killed within one, values by a plain forward pass, and nothing sampled again."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from gradus.models.policy import load_policy, prompt_text, prompt_tokens
from gradus.models.tiny_tokenizer import tiny_tokenizer
from tests.e2e.conftest import RECIPE, SAMPLES, Program
from tests.scorers import scorer_folder

MINE = '''
import numpy as np
from gradus.components import component
from gradus.data.curation.results import selection

@component("measure", by=("problem_id",), columns=("nats",), needs=("question", "answer"))
def surprise(rows, model):
    """Return how much the answer of each problem surprises the model."""
    found = model.logprobs(model.prompts(rows["question"]), model.tokens(rows["answer"]))
    return {"nats": -found.mean_logp * np.diff(found.logp.offsets)}

@component("ranking", needs=("surprise.nats",))
def surprising(rows):
    return rows["surprise.nats"]

@component("shape", needs=("likelihood.logp",))
def probable(rows, *, at_least: float = -0.2):
    """Learn from completions that the model of the measure finds probable."""
    return {"taken": rows["likelihood.logp"] >= at_least, "reason": "improbable"}
'''
FIRST = (
    "measures=[{name='mine.py:surprise', role='start'}]",
    "curate.rank='mine.py:surprising'",
    "curate.top=8",
    "curate.draw=8",
)
MORE = (
    "measures=[{name='mine.py:surprise', role='start'}, 'likelihood', {name='reward_model', role='rm'}]",
    "roles.rm.policy='scorer'",
    "update.shapes=['measured', {name='mine.py:probable', at_least=-0.3}]",
    *FIRST[1:],
)
TEMPLATE = "{% for m in messages %}{{ m.role[0] ~ m.content ~ '<end>' }}{% endfor %}"


def words(sets: tuple[str, ...]) -> list[str]:
    return [word for text in sets for word in ("--set", text)]


def started(program: Program, run: str) -> list[tuple[str, str, int]]:
    events = [e for e in program.events(run) if e["event"] == "stage_started"]
    return [(e["stage"], e["purpose"], e["round"]) for e in events]


@pytest.fixture(scope="module")
def measured(new_program: Callable[..., Program]) -> Program:
    """The tiny recipe with a ranking by a measure of the problems, killed within the measure, and run to its end."""
    program = new_program()
    (program.home / "mine.py").write_text(MINE)
    for name, num in (("train", 32), ("heldout", 8)):
        file = program.home / f"{name}.jsonl"
        file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:num]))
    command = ("train", str(RECIPE), *words(FIRST), "--run", "ranked")
    code, _, _ = program.run(*command, GRADUS_FAULT="measure:after_pass#1")
    assert code != 0
    assert started(program, "ranked")[-1] == ("measure", "surprise", 1)
    program.json(*command)
    return program


def test_a_kill_within_a_measure_loses_nothing_and_it_comes_out_as_before(measured: Program) -> None:
    calls, before = started(measured, "ranked"), measured.manifests()
    assert [each for each in calls if each[0] == "measure"] == [("measure", "surprise", 1)] * 2
    measured.json("rerun", "ranked", "surprise")
    assert started(measured, "ranked")[len(calls) :] == [("measure", "surprise", 1)]  # the same values: nothing follows
    assert measured.manifests().keys() == before.keys()


def test_the_values_are_those_of_a_plain_forward_pass_and_decide_the_plan(measured: Program) -> None:
    policy = load_policy(SAMPLES / "policy")
    (table,) = set(measured.outputs("ranked", "measure"))
    values = {
        row["problem_id"]: row["surprise.nats"] for row in measured.rows(str(table.relative_to(measured.home / "lake")))
    }
    problems = {row["problem_id"]: row for row in measured.rows("problems/*") if row["problem_id"] in values}
    assert problems.keys() == values.keys()
    for name, problem in [*problems.items()][::10]:
        prompt = prompt_tokens(policy.tokenizer, [prompt_text(policy.tokenizer, problem["question"])])[0]
        answer = policy.tokenizer(problem["answer"], add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        logp = torch.log_softmax(logits.double(), -1)[range(len(answer)), answer]
        assert values[name] == pytest.approx(-float(logp.sum()), abs=1e-3)
    hardest = sorted(values, key=lambda name: -values[name])[:8]
    plans = set(measured.outputs("ranked", "curate"))
    rows = [row for plan in plans for row in measured.rows(str(plan.relative_to(measured.home / "lake")))]
    assert {row["problem_id"] for row in rows if "by mine.py:surprising" in row["reason"]} == set(hardest)


def test_measures_more_sample_and_judge_nothing_and_are_asked_again_by_name(measured: Program) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = TEMPLATE
    scorer_folder(measured.home / "scorer", tokenizer, positions=512)
    measured.json("train", str(RECIPE), *words(MORE), "--run", "more")
    calls = started(measured, "more")
    assert [each for each in calls if each[0] != "evaluate" and not each[1].startswith("eval")][:4] == [
        ("measure", "likelihood", 1),
        ("measure", "reward_model", 1),
        ("shape", "train", 1),
        ("update", "train", 1),
    ]
    assert not [each for each in calls if each[0] in ("rollout", "score") and each[1] == "train" and each[2] == 1]
    # The sampler's own log-probs at temperature 1 are what the measure found, within the difference of two forms.
    known = json.loads(measured.run("sql", 'select rollout_id, "likelihood.logp" as logp from measures', "--json")[1])
    logp = {row[0]: row[1] for row in known["rows"] if row[1] is not None}
    rollouts = {row["rollout_id"]: row for row in measured.rows("rollouts/*")}
    own = {name: rollouts[name] for name in logp if rollouts[name]["temperature"] == 1.0}
    assert own
    sampled = [np.mean(row["logprobs"]) for row in own.values()]
    assert [logp[name] for name in own] == pytest.approx(sampled, abs=1e-3)
    batch = {row["rollout_id"]: row for row in measured.rows("batch/*")}
    seen = {n: row for n, row in batch.items() if not (row["reason"] or "").startswith("its problem was sampled")}
    for name, row in seen.items():
        assert row["taken"] == (logp[name] >= -0.3)
    # Every reward that is learned from is the reward model's own number, by transformers alone; verdicts stay.
    problems = {row["problem_id"]: row["question"] for row in measured.rows("problems/*")}
    model = AutoModelForSequenceClassification.from_pretrained(measured.home / "scorer").eval()
    for name, row in seen.items():
        text = f"u{problems[row['problem_id']]}<end>a{rollouts[name]['completion']}<end>"
        with torch.no_grad():
            value = model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).logits[0, 0]
        assert row["reward"] == pytest.approx(float(value), abs=1e-5)
    assert {row["reward"] for row in measured.rows("scores/*")} <= {0.0, 1.0}
    measured.json("rerun", "more", "likelihood")
    assert started(measured, "more")[len(calls) :][0] == ("measure", "likelihood", 1)
