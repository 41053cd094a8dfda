"""Marks that a user's reward returns, from its characters to the tokens in the table `scores`."""

import textwrap
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.components.marks import MAX_MARKS, MarkError, marks_of
from gradus.data.errors import BadInputError
from gradus.data.lake.manifest import identity_digest
from gradus.data.lake.schema import ROLLOUTS, cast_to_schema
from gradus.data.lake.store import Ref, Store
from gradus.data.table_rows import TableRows
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.host.processes import Warm
from tests.models.test_token_bounds import BYTES, END, NAMES
from tests.tasks.stages.score.scoring import OUT, score

MARKED = """
    def steps(rows):
        found = []
        for row in rows:
            at, marks = 0, []
            for number, line in enumerate(row["completion"].split("\\n")):
                marks.append({"name": "step", "start": at, "end": at + len(line), "value": number, "label": line[:1]})
                at += len(line) + 1
            found.append({"value": 1.0, "marks": marks if len(marks) > 1 else None})
        return found
"""
TEXTS = ["aé\nab 😀", "one line", "a\nb"]
SPELLED = ["aÃ", "©", "Ċ", "ab", "Ġ", "ðŁ", "ĺ", "Ģ", END]
"""The tokens of the first: é is cut in two, the last character in three."""


def rollouts(store: Store, *, sampled: bool = True) -> Ref:
    """Rollouts of a policy with the byte-level tokenizer; the last one is text alone."""
    folder = store.root.parent / "policy"
    BYTES.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    policy = store.adopt(folder)
    tokens = [list(map(NAMES.index, SPELLED)), BYTES(TEXTS[1])["input_ids"]]
    table = pa.table(
        {
            "rollout_id": ["a", "b", "c"],
            "problem_id": ["p"] * 3,
            "completion": TEXTS,
            "completion_tokens": pa.array([*tokens, None], pa.list_(pa.int32())),
        }
    )
    identity = {"made": "here"}
    out = store.writer(Ref("rollouts", identity_digest(identity)))
    out.write_table(cast_to_schema(table, ROLLOUTS))
    out.commit(identity=identity, parents={"policy": [str(policy)]} if sampled else {})
    return Ref("rollouts", identity_digest(identity))


def rewarded(tmp_path: Path, body: str, name: str) -> ScoreConfig:
    (tmp_path / "mine.py").write_text(textwrap.dedent(body))
    return ScoreConfig(rewards=(RewardConfig(name=f"{tmp_path / 'mine.py'}:{name}"),), correct_at=0.5, shard_rows=2)


def test_characters_become_tokens(store: Store, warm: Warm, tmp_path: Path) -> None:
    _, rows = score(store, warm, rewarded(tmp_path, MARKED, "steps"), rollouts(store))
    first, second = rows[0]["marks"]
    assert first == {"name": "step", "start": 0, "end": 2, "value": 0.0, "label": "a"}
    assert (second["start"], second["end"], second["value"]) == (3, 8, 1.0)
    assert rows[1]["marks"] is None
    # Text alone: no token holds it, and number and text remain.
    assert [(m["start"], m["end"], m["value"], m["label"]) for m in rows[2]["marks"]] == [
        (None, None, 0.0, "a"),
        (None, None, 1.0, "b"),
    ]
    marks = TableRows(store.read(OUT)).reading(["marks.step"], "mine").marks("step")
    assert (marks.row.tolist(), marks.start.tolist()) == ([0, 0, 2, 2], [0, 3, -1, -1])
    assert (marks.end.tolist(), marks.label.tolist()) == ([2, 8, -1, -1], ["a", "a", "a", "b"])
    none = TableRows(store.read(OUT)).marks("other")
    assert len(none.row) == len(none.value) == 0


def test_a_reward_without_marks_leaves_no_column(store: Store, warm: Warm, tmp_path: Path) -> None:
    body = "def plain(rows):\n    return [{'value': 1.0, 'marks': []} for row in rows]\n"
    _, rows = score(store, warm, rewarded(tmp_path, body, "plain"), rollouts(store))
    assert "marks" not in rows[0]


def test_tokens_of_nobody_known_are_refused(store: Store, warm: Warm, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="the policy whose tokenizer they are of is not there"):
        score(store, warm, rewarded(tmp_path, MARKED, "steps"), rollouts(store, sampled=False))


def test_a_wrong_mark_is_an_error_of_its_row(store: Store, warm: Warm, tmp_path: Path) -> None:
    body = """
        def odd(rows):
            return [{"value": 1.0, "marks": [{"name": "step", "start": 0, "end": 7}]} for row in rows]
    """
    _, rows = score(store, warm, rewarded(tmp_path, body, "odd"), rollouts(store))
    assert [row["reward"] for row in rows] == [1.0, 1.0, None]
    assert rows[2]["error"].endswith("the function returned a mark 'step' from 0 to 7 of a completion of 3 characters")
    assert rows[2]["marks"] is None


STEP = {"name": "step", "start": 1, "end": 3}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("step", "str as 'marks', not a list"),
        ([3], "int as a mark, not a mapping with name, start, end, value, label"),
        ([{**STEP, "begin": 1}], "the key 'begin' in a mark: the keys are name, start, end, value, label"),
        ([{"start": 1, "end": 3}], "a mark whose name is not text of 1 to 100 characters"),
        ([{**STEP, "name": "n" * 101}], "a mark whose name is not text of 1 to 100 characters"),
        ([{**STEP, "end": None}], "a mark 'step' whose start and end are not whole numbers"),
        ([{**STEP, "start": 1.0}], "a mark 'step' whose start and end are not whole numbers"),
        ([{**STEP, "start": True}], "a mark 'step' whose start and end are not whole numbers"),
        ([{**STEP, "start": 4}], "a mark 'step' from 4 to 3 of a completion of 9 characters"),
        ([{**STEP, "start": -1}], "a mark 'step' from -1 to 3 of a completion of 9 characters"),
        ([{**STEP, "end": 10}], "a mark 'step' from 1 to 10 of a completion of 9 characters"),
        ([{**STEP, "value": "1"}], "a mark 'step' whose value is '1', not a finite number"),
        ([{**STEP, "value": True}], "a mark 'step' whose value is 'True', not a finite number"),
        ([{**STEP, "value": float("nan")}], "a mark 'step' whose value is 'nan', not a finite number"),
        ([{**STEP, "value": 10**400}], "a mark 'step' whose value is '1000000000"),
        ([{**STEP, "label": 3}], "a mark 'step' whose label is int, not text"),
        ([STEP] * (MAX_MARKS + 1), "10,001 marks of a completion, of which there may be 10,000"),
    ],
)
def test_what_cannot_be_read_is_said(given: Any, said: str) -> None:
    with pytest.raises(MarkError) as error:
        marks_of(given, 9, "characters")
    assert str(error.value).startswith(said)
