"""Stage measure: which rows a measure sees, and what of its answer is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.rounds import MeasuringConfig
from gradus.tasks.stages import measure
from tests.scorers import scorer_folder
from tests.tasks.stages.test_learning import policy
from tests.tasks.stages.test_tracker import context

OWN = """
from gradus.components import component

@component("measure", by=("rollout_id",), columns=("seen",), needs=NEEDS)
def mine(rows, model):
    return BODY
"""
PROBLEMS = pa.table({"problem_id": ["a", "b"], "question": ["1 + 2 =", "4 + 5 ="], "answer": ["3", "9"]})
ROLLOUTS = pa.table(
    {
        "rollout_id": ["r1", "r2", "r3", "g1"],
        "problem_id": ["a", "a", "a", "a"],
        "group_id": ["a", "a", "a", "a"],
        "use": [None, None, "judge", None],
        "about": [None, None, ["r2"], None],
        "origin": [None, None, None, "expert"],
        "completion": ["3", "4", "yes", "1+2=3"],
        "prompt_tokens": pa.array([[5, 6]] * 4, pa.list_(pa.int32())),
        "completion_tokens": pa.array([[7], [8, 9], [4], [7]], pa.list_(pa.int32())),
    }
)


def measured(store: Store, folder: Path, body: str, needs: str = '("completion",)', **inputs: Ref) -> pa.Table:
    """Ask a measure of rollouts about those of a round."""
    (folder / "mine.py").write_text(OWN.replace("NEEDS", needs).replace("BODY", body))
    scores = pa.table(
        {**ROLLOUTS.slice(0, 3).select(["rollout_id", "problem_id"]).to_pydict(), "reward": [1.0, 0.0, 1.0]}
    )
    tables = {
        "problems": PROBLEMS,
        "rollouts": ROLLOUTS,
        "scores": scores,
        "plan": pa.table({"problem_id": ["a"], "group_id": ["a"], "n": [2]}),
    }
    given: dict[str, Any] = {role: (store.put(role, table),) for role, table in tables.items()}
    given |= {"policy": (policy(store, folder / "policy"),)} | {role: (ref,) for role, ref in inputs.items()}
    ctx = context(store, "measures", given)
    measure.run(ctx, MeasuringConfig.model_validate({"measure": f"{folder / 'mine.py'}:mine"}))
    ctx.out.commit()
    return store.read(ctx.out.ref)


def test_it_sees_what_is_learned_from_given_rows_too(store: Store, tmp_path: Path) -> None:
    body = '{"seen": [f"{text} {value}" for text, value in zip(rows["completion"], rows["reward"])]}'
    found = measured(store, tmp_path, body, '("completion", "reward")')
    assert found.to_pylist() == [
        {"rollout_id": "r1", "mine.seen": "3 1.0"},
        {"rollout_id": "r2", "mine.seen": "4 0.0"},
        {"rollout_id": "g1", "mine.seen": "1+2=3 nan"},
    ]


def test_it_sees_the_hints_of_its_problems_and_what_rows_of_another_use_say(store: Store, tmp_path: Path) -> None:
    levels = [("b", 1, "other", False), ("a", 3, "answer 3", True), ("a", 1, "add", False)]
    columns = dict(zip(("problem_id", "level", "text", "leaks_answer"), zip(*levels, strict=True), strict=True))
    hints = store.put("hints", pa.table({"strategy": ["prefix"] * 3, **{k: list(v) for k, v in columns.items()}}))
    found = measured(
        store, tmp_path, '{"seen": [str(each) for each in rows["hint.texts"]]}', '("hint.texts",)', hints=hints
    )
    assert found.column("mine.seen").to_pylist() == ["['add', None, 'answer 3']"] * 3
    said = 'rows.others("judge")'
    body = f'{{"seen": [f"{{a}} {{t}}" for a, t in zip({said}["about"][:, 0], {said}["completion"])] * 3}}'
    found = measured(store, tmp_path, body, '("judge: about", "judge: completion")')
    assert found.column("mine.seen").to_pylist() == ["1 yes"] * 3


def test_a_problem_without_hints_has_none(store: Store, tmp_path: Path) -> None:
    none = {"problem_id": ["b"], "strategy": ["prefix"], "level": [1], "text": ["x"], "leaks_answer": [False]}
    for table in (pa.table(none), pa.table(none).slice(0, 0)):
        hints = store.put("hints", table)
        body = '{"seen": [str(each) for each in rows["hint.texts"]]}'
        found = measured(store, tmp_path, body, '("hint.texts",)', hints=hints)
        assert found.column("mine.seen").to_pylist() == ["None"] * 3


def test_a_measure_of_texts_sees_those_of_the_problems_beside_these(store: Store, tmp_path: Path) -> None:
    needs = ("problem.question", "text", "source", "problem.level", "problem.messages")
    body = f'{{"seen": [" ".join(map(str, each)) for each in zip(*(rows[name] for name in {needs}))]}}'
    own = OWN.replace("rollout_id", "trace_id").replace("NEEDS", str(needs)).replace("BODY", body)
    (tmp_path / "mine.py").write_text(own)
    texts = pa.table(
        {
            "rollout_id": ["0", "1", "2", "3"],
            "problem_id": ["b", "z", "a", "b"],
            "completion": ["9", "?", "3", "nine"],
            "source": ["book", None, None, "friend"],
        }
    )
    problems = PROBLEMS.append_column("extra", pa.array(['{"level": 1}', '{"level": 2}']))
    tables = {"problems": store.put("problems", problems), "traces": store.put("rollouts", texts)}
    tables |= {"policy": policy(store, tmp_path / "policy")}
    given: dict[str, Any] = {role: (ref,) for role, ref in tables.items()}
    ctx = context(store, "measures", given)
    measure.run(ctx, MeasuringConfig.model_validate({"measure": f"{tmp_path / 'mine.py'}:mine"}))
    ctx.out.commit()
    assert store.read(ctx.out.ref).to_pylist() == [
        {"trace_id": "0", "mine.seen": "4 + 5 = 9 book 2 None"},
        {"trace_id": "2", "mine.seen": "1 + 2 = 3 None 1 None"},
        {"trace_id": "3", "mine.seen": "4 + 5 = nine friend 2 None"},
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{}", "measure mine.py:mine: it returns no seen"),
        ('{"seen": [1.0]}', "measure mine.py:mine: it returns 3 values of rollout_id and 1 of seen"),
        ('{"seen": [1.0] * 3, "more": [1.0] * 3}', "it returns 'more', which is neither a key column nor one"),
        ('{"seen": rows["reward"]}', "reads 'reward' without declaring it"),
        ('{"seen": model.logprobs([[5]], [[99_999]]).mean_logp}', "token 99999 is none of the model's"),
        (
            "[1]",
            "measure mine .mine.py line 4. returned list of shape .1,.; a measure returns a dict of arrays of N values",
        ),
        ("1 / 0", "measure mine failed at .*mine.py line 6: ZeroDivisionError"),
    ],
)
def test_what_it_cannot_return_is_refused_with_a_sentence(store: Store, tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        measured(store, tmp_path, body)


def test_tokens_of_another_vocabulary_are_refused_and_texts_are_not(store: Store, tmp_path: Path) -> None:
    policy(store, tmp_path / "other")
    tokenizer = json.loads((tmp_path / "other" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["7"], vocabulary["8"] = vocabulary["8"], vocabulary["7"]
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(tokenizer))
    other = store.adopt(tmp_path / "other")
    body = '{"seen": model.logprobs(rows["prompt_tokens"], rows["completion_tokens"]).mean_logp}'
    with pytest.raises(BadInputError, match="reads tokens, and policy has another vocabulary than the policy that"):
        measured(store, tmp_path, body, '("prompt_tokens", "completion_tokens")', sampler=other)
    found = measured(store, tmp_path, '{"seen": rows["completion"]}', sampler=other)
    assert found.num_rows == 3


def test_a_reward_model_scores_texts_with_its_own_vocabulary(store: Store, tmp_path: Path) -> None:
    folder = scorer_folder(tmp_path / "scorer", bos_token_id=1, pad_token_id=0)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["3"], vocabulary["4"] = vocabulary["4"], vocabulary["3"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    body = '{"seen": model.values(model.answered(rows["problem.question"], rows["completion"]))}'
    needs = '("completion", "problem.question")'
    sampler = policy(store, tmp_path / "sampler")
    found = measured(store, tmp_path, body, needs, policy=store.adopt(folder), sampler=sampler)
    model: Any = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    encode: Any = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        asked = [torch.tensor([encode(f"1 + 2 =\n{text}")["input_ids"]]) for text in ("3", "4", "1+2=3")]
        expected = [float(model(input_ids=ids).logits[0, 0]) for ids in asked]
    assert found.column("mine.seen").to_pylist() == pytest.approx(expected, abs=1e-5)
    assert np.ptp(expected) > 0.01


@pytest.mark.parametrize(
    ("num_labels", "body", "said"),
    [
        (0, '{"seen": model.values([[5]] * 3)}', "values need a model with a scalar head, and this one is a language"),
        (1, '{"seen": model.logprobs([[5]] * 3, [[6]] * 3).mean_logp}', "log-probs need a language model"),
        (2, "{}", r"checkpoints/\w+ returns 2 numbers for a text, by the labels in its config.json, where a scalar"),
    ],
)
def test_a_model_without_the_head_that_is_asked_for_is_refused(
    store: Store, tmp_path: Path, num_labels: int, body: str, said: str
) -> None:
    folder = tmp_path / "asked"
    ref = store.adopt(scorer_folder(folder, num_labels=num_labels)) if num_labels else policy(store, folder)
    with pytest.raises(BadInputError, match=said):
        measured(store, tmp_path, body, policy=ref)
