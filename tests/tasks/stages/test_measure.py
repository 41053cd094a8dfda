"""Stage measure: which rows a measure sees, and what of its answer is refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.trackers import MeasuringConfig
from gradus.tasks.stages.tracker import measure
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
