"""Stage hint: levels that show the same text, and steps that state the answer early, are counted."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.errors import GateError
from gradus.data.lake.store import Store
from gradus.tasks.config.curation import HintConfig
from tests.tasks.stages.test_learning import stage

PROBLEMS = pa.table(
    {
        "problem_id": ["short", "long", "early", "none"],
        "question": ["8 + 5 + 7 =", "8 + 5 + 7 - 1 + 3 =", "9 + 4 - 3 + 3 =", "1 + 1 ="],
        "answer": ["20", "22", "13", "2"],
        "solution": [
            "8+5=13\n13+7=20",
            "8+5=13\n13+7=20\n20-1=19\n19+3=22",
            "9+1=10\n9+4=13\n13-3=10\n10+3=13",
            "1+1=2",
        ],
    }
)


def test_levels_of_the_same_text_and_answers_that_a_step_states_are_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    made, report = stage(store, "hint", "hints", "a", inputs={"problems": [store.put("problems", PROBLEMS)]})
    texts: dict[str, list[str]] = {}
    for row in store.read(made).to_pylist():
        texts.setdefault(row["problem_id"], []).append(row["text"])
    assert texts == {
        "short": ["8+5=13\n"] * 3,
        "long": ["8+5=13\n", "8+5=13\n13+7=20\n", "8+5=13\n13+7=20\n20-1=19\n"],
        "early": ["9+1=10\n"] * 3,  # each level is cut before the step that states 13
    }
    assert (report["summary"]["repeated_levels"], report["summary"]["stated_early"]) == (2, 1)


def test_the_reasons_are_said_if_no_problem_can_be_hinted_at(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(GateError, match=r"none of 1 problems can be hinted at \(a single step: 1\)"):
        stage(store, "hint", "hints", "a", inputs={"problems": [store.put("problems", PROBLEMS.slice(3))]})


def test_the_sentence_above_a_hint_is_that_of_its_strategy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tiers = PROBLEMS.slice(0, 1).append_column("extra", pa.array(['{"tiers": [["Add from the left."]]}']))
    problems = [store.put("problems", tiers)]
    made, _ = stage(store, "hint", "hints", "a", inputs={"problems": problems}, strategy="tiers", fractions=(1.0,))
    assert store.read(made).column("shown").to_pylist() == ["Hints, from what is needed to how it is solved:"]
    made, _ = stage(store, "hint", "hints", "b", inputs={"problems": problems})
    assert "shown" not in store.read(made).column_names


MINE = '''
from gradus.components import component

@component("hint", needs=("problem.level", "domain", "pass_rate", "seen.count"))
def mine(problem, fraction):
    """Show what there is of a problem."""
    return str([problem[name] for name in ("problem.level", "domain", "pass_rate", "seen.count")])
'''


def test_a_strategy_reads_keys_of_problems_difficulty_and_trackers(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    problems = pa.table(
        {
            "problem_id": ["a", "b"],
            "question": ["4 + 4 =", "5 + 4 ="],
            "answer": ["8", "9"],
            "domain": ["sums", None],
            "extra": ['{"level": 3}', None],
        }
    )
    seen = pa.table({"problem_id": ["b"], "seen.count": [7.0]})
    difficulty = pa.table({"problem_id": ["a"], "n": [4], "k": [1]})
    store = Store(tmp_path / "lake")
    inputs = {name: [store.put(name, table)] for name, table in (("problems", problems), ("difficulty", difficulty))}
    inputs["trackers"] = [store.put("trackers", seen)]
    config: dict[str, Any] = {
        "strategy": f"{tmp_path}/mine.py:mine",
        "fractions": (0.5,),
        "tracked": {"seen.count": ("problem_id",)},
    }
    made, _ = stage(store, "hint", "hints", "a", inputs=inputs, **config)
    texts = dict(zip(*(store.read(made).column(name).to_pylist() for name in ("problem_id", "text")), strict=True))
    assert texts == {"a": "[3.0, 'sums', 0.25, None]", "b": "[None, None, None, 7.0]"}


def test_a_strategy_of_what_rounds_measure_may_have_no_hint_yet(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from gradus.components import component\n\n"
        '@component("hint", needs=("seen.count",))\ndef mine(problem, fraction):\n    """Wait."""\n'
        '    return None if problem["seen.count"] is None else "begin"\n'
    )
    store, tracked = Store(tmp_path / "lake"), {"seen.count": ("problem_id",)}
    inputs = {"problems": [store.put("problems", PROBLEMS.slice(0, 2))]}
    config: dict[str, Any] = {"strategy": f"{tmp_path}/mine.py:mine", "fractions": (0.5,), "tracked": tracked}
    made, report = stage(store, "hint", "hints", "a", inputs=inputs, **config)
    assert (store.read(made).num_rows, report["summary"]["unhinted"]) == (0, {"the strategy has no hint": 2})
    inputs["trackers"] = [store.put("trackers", pa.table({"problem_id": ["long"], "seen.count": [1.0]}))]
    made, report = stage(store, "hint", "hints", "b", inputs=inputs, **config)
    assert store.read(made).column("problem_id").to_pylist() == ["long"]


@pytest.mark.parametrize(
    ("needs", "by_round"),
    [("", False), ('"problem.level", "domain"', False), ('"pass_rate"', True), ('"seen.count"', True)],
)
def test_only_what_rounds_measure_asks_for_hints_in_every_round(tmp_path: Path, needs: str, by_round: bool) -> None:
    text = MINE.replace('"problem.level", "domain", "pass_rate", "seen.count"', needs, 1).replace("(),", "()")
    (tmp_path / "mine.py").write_text(text)
    found = HintConfig.model_validate({"strategy": f"{tmp_path}/mine.py:mine"})
    assert found.reads_rounds == by_round
