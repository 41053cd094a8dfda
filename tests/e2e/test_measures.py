"""Measures and shapes through the real program: killed within a measure, values by a plain forward pass, learned rows.

Changed, they sample and judge nothing again.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
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

@component("shape", needs=("group", "correct", "problem.domain"))
def apart(rows, *, worst: int = 1):
    """Learn from the first right row of each group and its last wrong ones; double the weight of a domain."""
    order = np.lexsort((np.arange(rows.num_rows), -np.nan_to_num(rows["correct"]), rows["group"]))
    size = rows.by("group").count(np.ones(rows.num_rows))[order]
    first = np.concatenate(([True], np.diff(rows["group"][order]) != 0))
    place = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    taken = np.zeros(rows.num_rows, dtype=bool)
    taken[order[(place == 0) | (place >= size - worst)]] = True
    weight = np.where(rows["problem.domain"] == min(rows["problem.domain"]), 2.0, 1.0)
    return {"taken": taken, "reason": "enough of its group", "weight": weight}

@component("advantage", needs=("reward", "group", "parts.numeric", "plan.n"))
def centred(rows):
    """Return the reward less its group's mean; all rows came of plans of four."""
    assert bool((rows["plan.n"] == 4).all()) and bool((rows["parts.numeric"] == rows["reward"]).all())
    return (rows["reward"] - rows.by("group").mean(rows["reward"])).nan_to_num(0.0)
'''
FIRST = (
    "measures=[{name='mine.py:surprise', role='start'}]",
    "curate.rank='mine.py:surprising'",
    "curate.top=8",
    "curate.draw=8",
    "update.shapes=['mine.py:apart']",
    "update.advantage='mine.py:centred'",
)
MORE = (
    "measures=[{name='mine.py:surprise', role='start'}, 'likelihood', {name='reward_model', role='rm'}]",
    "roles.rm.policy='scorer'",
    "update.shapes=['measured', {name='mine.py:probable', at_least=-0.3}]",
    *FIRST[1:4],
)
TEMPLATE = "{% for m in messages %}{{ m.role[0] ~ m.content ~ '<end>' }}{% endfor %}"


def words(sets: tuple[str, ...]) -> list[str]:
    return [word for text in sets for word in ("--set", text)]


def started(program: Program, run: str) -> list[tuple[str, str, int]]:
    events = [e for e in program.events(run) if e["event"] == "stage_started"]
    return [(e["stage"], e["purpose"], e["round"]) for e in events]


@pytest.fixture(scope="module")
def measured(new_program: Callable[..., Program]) -> Program:
    """The tiny recipe with a ranking by a measure and a shape, killed within the measure, and run to its end."""
    program = new_program(warm=True)
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


def test_an_update_learns_from_exactly_what_the_batch_takes(measured: Program) -> None:
    (made,), (taught,) = set(measured.outputs("ranked", "shape")), set(measured.outputs("ranked", "update"))
    batch = [row for file in made.glob("part-*.parquet") for row in pq.read_table(file).to_pylist()]
    rows = {row["rollout_id"]: row for row in pq.read_table(taught / "rows.parquet").to_pylist()}
    assert {row["rollout_id"] for row in batch if row["taken"]} == rows.keys()
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in batch:
        groups.setdefault(row["group_id"], []).append(row)
    # By the files: two of each group that no hinted one replaced, a right and a wrong one where there are both.
    correct = {row["rollout_id"]: row["correct"] for row in measured.rows("scores/*")}
    for group in groups.values():
        taken = [correct[row["rollout_id"]] for row in group if row["taken"]]
        replaced = all((row["reason"] or "").startswith("its problem was sampled again") for row in group)
        assert len(taken) == (0 if replaced else 2)
        right = sum(bool(correct[row["rollout_id"]]) for row in group)
        assert replaced or sum(map(bool, taken)) == (2 if right == len(group) else min(1, right))
    domains = {row["problem_id"]: row["domain"] for row in measured.rows("problems/*")}
    unseen = [(row["reason"] or "").startswith("its problem was sampled again") for row in batch]
    lowest = min(domains[row["problem_id"]] for row, left_out in zip(batch, unseen, strict=True) if not left_out)
    for row, left_out in zip(batch, unseen, strict=True):  # a shape sees no row that was left out before it
        assert row["weight"] == (None if left_out else 2.0 if domains[row["problem_id"]] == lowest else 1.0)
    weights = {row["rollout_id"]: row["weight"] for row in batch}
    factors = {name: row["weight"] for name, row in rows.items() if row["advantage"]}
    assert factors == pytest.approx({name: weights[name] for name in factors})
    shape = next(e for e in measured.events("ranked") if e["event"] == "stage_finished" and "left_out" in e["summary"])
    assert shape["summary"]["left_out"]["enough of its group"] == sum(
        r["reason"] == "enough of its group" for r in batch
    )


def test_a_shape_is_explained_and_asked_again_by_its_name(measured: Program) -> None:
    calls = started(measured, "ranked")
    code, _, said = measured.run("why", "ranked", "shape", "--round", "1")
    assert code == 0, said
    measured.json("rerun", "ranked", "shape")
    assert [each[0] for each in started(measured, "ranked")[len(calls) :]] == ["shape"]  # the batch came out as before
    table = measured.json("sql", "select count(*) as n from batch where not taken", "--run", "ranked")
    assert table["rows"][0][0] > 0


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
    (made,) = set(measured.outputs("more", "shape"))
    rows = [row for file in made.glob("part-*.parquet") for row in pq.read_table(file).to_pylist()]
    batch = {row["rollout_id"]: row for row in rows}
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
