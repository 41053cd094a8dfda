"""A user's file of completions as an artifact, and problems without worked solutions."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Store
from gradus.tasks.artifacts.beginning import refuse_unsolved, traces_ref

PROBLEMS = {
    "problem_id": ["a", "b", "c"],
    "question": ["1 + 2 + 3 =", "4 + 5 =", "6 + 7 ="],
    "solution": ["6", None, None],
}


def test_rows_of_a_file_are_several_a_problem_by_id_or_question_and_others_are_counted(tmp_path: Path) -> None:
    file, store = tmp_path / "traces.jsonl", Store(tmp_path / "lake")
    problems = store.put("problems", pa.table(PROBLEMS))
    rows = [
        {"problem": "a", "source": "r1", "text": "1+2=3\n3+3=6"},
        {"problem": "a", "source": "r1", "text": "7"},
        {"problem": " 4 +  5 =", "text": "9"},
        {"problem": "nowhere", "text": "1"},
        {"problem": "b"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ref, remarks = traces_ref(store, str(file), [problems])
    names = ("problem_id", "completion", "source")
    assert [tuple(row[name] for name in names) for row in store.read(ref).to_pylist()] == [
        ("a", "1+2=3\n3+3=6", "r1"),
        ("a", "7", "r1"),
        ("b", "9", None),
    ]
    left_out = "its problem is not among the training problems: 1, no text: 1"
    assert remarks == [f"{file}: 2 of 5 rows are left out ({left_out}; first {file} line 4: {left_out[:46]})"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]))
    assert traces_ref(store, str(file), [problems]) == (ref, [])  # named by what it holds
    file.write_text(json.dumps(rows[3]) + "\n")
    with pytest.raises(BadInputError, match=r"no row of .* is a completion of a training problem"):
        traces_ref(store, str(file), [problems])


def test_problems_without_any_worked_solution_are_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    some, none = (store.put("problems", pa.table(PROBLEMS).slice(at)) for at in (0, 1))
    refuse_unsolved(store, [none, some])
    with pytest.raises(BadInputError, match="no problem has a worked solution"):
        refuse_unsolved(store, [none])
