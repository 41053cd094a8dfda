"""Rows that others wrote, and other models beside the policy, through the real program."""

import json
from collections.abc import Callable

import pyarrow.parquet as pq
import pytest
import torch

from gradus.models.policy import load_policy, prompt_text, prompt_tokens
from tests.e2e.conftest import RECIPE, SAMPLES, Program
from tests.e2e.test_own_components import BLOCKS

EXPERT = """
[given]
origin = "book"
rows = "traces.jsonl"

[[update.origin_losses]]
origin = "book"
loss = { name = "luffy", gamma = 0.2 }
"""


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    made = new_program(warm=True)
    (made.home / "books.toml").write_text(
        RECIPE.read_text().replace('name = "tiny"', 'name = "books"').replace("escalate = [2]", "escalate = []")
        + EXPERT
    )
    lines = [json.loads(line) for line in (made.home / "train.jsonl").read_text().splitlines()]
    traces = [
        {"problem": line["question"], "source": source, "text": text}
        for line in lines
        for source, text in (("right", f"{line['solution']}\n#### {line['answer']}"), ("wrong", "1+1=3\n#### 99999"))
    ]
    (made.home / "traces.jsonl").write_text("".join(json.dumps(row) + "\n" for row in traces))
    return made


def test_traces_are_judged_as_they_stand_and_train_beside_the_policys_own_completions(program: Program) -> None:
    told = program.json("train", "books.toml")
    assert told["updates"] == 1
    folder = program.home / "lake" / told["policy"]
    table = {row["rollout_id"]: row for row in pq.read_table(folder / "rows.parquet").to_pylist()}
    lines = [json.loads(line) for line in (program.home / "train.jsonl").read_text().splitlines()]
    plan = [row for row in program.rows("plan/*") if row["group_id"].split("@")[1].startswith("r1")]
    given = {row["rollout_id"]: row for row in program.rows("rollouts/*") if row["origin"] == "book"}
    planned = {row["problem_id"] for row in plan}
    assert len(given) == 2 * len(planned) < 2 * len(lines)  # of the round's problems alone
    learnt = [name for name in table if name in given]
    assert {given[name]["problem_id"] for name in learnt} == planned
    # The advantage again, by hand: a group is four of the policy's own and two of the book.
    rewards = {row["rollout_id"]: row["reward"] for row in program.rows("scores/*")}
    right = {name for name, row in given.items() if row["source"] == "right"}
    assert {name for name in given if rewards[name] == 1.0} == right  # a wrong trace stays wrong
    name = next(name for name in learnt if table[name]["advantage"] > 0)
    problem = given[name]["problem_id"]
    group = [rewards[other] for other, row in table.items() if row["problem_id"] == problem]
    mean = sum(group) / len(group)
    std = (sum((r - mean) ** 2 for r in group) / (len(group) - 1)) ** 0.5
    assert len(group) == 6
    assert table[name]["advantage"] == pytest.approx((rewards[name] - mean) / (std + 1e-4), rel=1e-6)
    counted = program.json("sql", "select origin, count(*) as n from updates group by origin order by origin")
    by_origin = dict(counted["rows"])
    assert by_origin == {"book": len(learnt), "own": len(table) - len(learnt)}


def test_of_several_texts_of_a_problem_a_measure_of_the_users_chooses_the_one_that_is_given(program: Program) -> None:
    for name in ("clarity.py", "clarity.toml"):
        (program.home / name).write_text(BLOCKS[name])
    (program.home / "teachers.jsonl").write_bytes((program.home / "traces.jsonl").read_bytes())
    plain = RECIPE.read_text().replace("escalate = [2]", "escalate = []")
    (program.home / "plain.toml").write_text(plain)
    program.json("train", "plain.toml", "--method", "clarity.toml", "--run", "clear")
    events = [event for event in program.events("clear") if event["event"] == "stage_started"]
    of_round = [event for event in events if event["round"] == 1 and not event["purpose"].startswith("eval")]
    stages = [(event["stage"], event["purpose"]) for event in of_round]
    assert stages[:2] == [("measure", "clarity"), ("wave", "given_unsolved1")]  # what was before is reused
    measured, planned = (program.rows(event["output"]) for event in of_round[:2])
    texts = [json.loads(line) for line in (program.home / "teachers.jsonl").read_text().splitlines()]
    value = {row["trace_id"]: row["clarity.prob"] for row in measured}
    assert len(value) == len(texts)
    policy = load_policy(SAMPLES / "policy")
    problems = {row["problem_id"]: row for row in program.rows("problems/*")}
    answers = {row["question"]: row["answer"] for row in problems.values()}
    for place in (0, 1, 7):
        answer, text = answers[texts[place]["problem"]], texts[place]["text"]
        prompt = prompt_tokens(policy.tokenizer, [prompt_text(policy.tokenizer, texts[place]["problem"])])[0]
        before = text[: text.rindex(answer)] if answer in text else text
        tokens, target = (policy.tokenizer(each, add_special_tokens=False)["input_ids"] for each in (before, answer))
        whole = prompt + tokens + target
        with torch.no_grad():
            logits = policy.model(input_ids=torch.tensor([whole])).logits[0, len(whole) - len(target) - 1 : -1]
        prob = torch.softmax(logits.double(), -1)[range(len(target)), target]
        assert value[str(place)] == pytest.approx(float(prob.mean()), abs=1e-4)
    clearest = dict[str, str]()
    for place in sorted(range(len(texts)), key=lambda place: (value[str(place)], -place)):
        clearest[texts[place]["problem"]] = texts[place]["text"]
    assert planned
    assert all(row["given"] == clearest[problems[row["problem_id"]]["question"]] for row in planned)
    assert len({row["problem_id"] for row in planned}) == len(planned)


def test_a_policy_distils_from_a_teacher_that_the_command_names(program: Program) -> None:
    refs = {table: [] for table in ("rollouts", "scores")}
    events = program.events("books-*")
    for event in events:
        if event["event"] == "stage_started" and event["round"] == 1 and event["purpose"] == "train":
            table = event["output"].partition("/")[0]
            if table in refs:
                refs[table].append(event["output"])
    words = ["--rollouts", refs["rollouts"][0], "--scores", refs["scores"][0], "--set", "loss=distil"]
    code, _, err = program.run("update", *words)
    assert (code, "Traceback" in err) == (2, False)
    assert "give --teacher" in err
    (made,) = (event["output"] for event in events if event["event"] == "stage_started" and event["stage"] == "update")
    told = program.json("update", *words, "--teacher", made)
    assert told["updates"] == 1


def test_a_recipe_that_lacks_a_role_or_a_loss_is_refused_before_anything_starts(program: Program) -> None:
    code, _, err = program.run("train", "books.toml", "--set", "update.loss=distil")
    assert (code, "set teacher to a policy" in err) == (2, True)
    code, _, err = program.run("train", "books.toml", "--set", "given.origin=film")
    assert (code, "no loss for given rows, whose origin is film" in err) == (2, True)
