"""Remarks: what the counts of a run's stages mean for its figures, in sentences."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradus.data.lake.manifest import REPORT
from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.remarks import remarks, shared_problems


def remarked(store: Store, *stages: tuple[str, int, str, dict[str, Any]]) -> list[str]:
    """Remarks on stages, each by name, round, purpose and summary."""
    rows: list[Any] = []
    for number, (stage, index, purpose, summary) in enumerate(stages):
        ref = Ref("checkpoints", f"{number:032x}")
        writer = store.writer(ref)
        writer.write_file(REPORT, json.dumps({"summary": summary}).encode())
        writer.commit()
        rows.append({"stage": stage, "round": index, "purpose": purpose, "output": str(ref)})
    return remarks(store, rows)


def test_skipped_rounds_and_replaced_groups_are_counted_over_the_rounds(tmp_path: Path) -> None:
    store = Store(tmp_path)
    updates = [("update", index, "train", {"groups": 5, "replaced_groups": index}) for index in (1, 2)]
    skipped = ("update", 3, "train", {"groups": 8, "replaced_groups": 0, "skipped_updates": 1})
    left_out = "updates learnt from 10 groups and left out 3 failed ones that a hinted one followed"
    assert remarked(store, *updates, skipped) == [
        "1 of 3 rounds had no signal and skipped their update: 3",
        f"{left_out} (update.drop_replaced_groups)",
    ]
    assert remarked(Store(tmp_path / "none"), ("update", 1, "train", {"groups": 5, "replaced_groups": 0})) == []


def test_rows_that_are_not_used_are_said_with_reasons_and_each_remark_once(tmp_path: Path) -> None:
    refused = {"rows": 1, "refused": {"duplicate question": 15}, "examples": ["t.jsonl line 2: duplicate question"]}
    long = "longer than the policy's context"
    rounds = [
        ("rollout", index, "given1", {"rows": 4, "refused": {long: num}, "examples": [f"problem {index}: {long}"]})
        for index, num in ((1, 2), (2, 3))
    ]
    stages = [("ingest", 0, "train", refused), ("ingest", 0, "train", refused), *rounds]
    left_out = "training problems: 15 of 16 rows are left out (duplicate question: 15; first t.jsonl line 2"
    assert remarked(Store(tmp_path), *stages) == [
        f"{left_out}: duplicate question); ingest.duplicates=keep takes repeated questions",
        f"5 given texts are left out (first problem 1: {long})",
    ]


def test_a_cut_among_equals_and_hints_without_levels_are_said(tmp_path: Path) -> None:
    tied = {"tied_out": 41, "ranking": "historical_std", "tied_value": "0"}
    hints = {"rows": 170, "problems": 58, "repeated_levels": 14, "stated_early": 3}
    cut, same, early = remarked(Store(tmp_path), ("curate", 1, "train", tied), ("hint", 0, "train", hints))
    assert cut.startswith(
        "41 problems that `top` left out rank equal to the last one kept (historical_std = 0): ids decided"
    )
    assert same.startswith("hints of 14 of 58 problems have the same text at two levels or more")
    assert early == ("in 3 of 58 problems a step before the last states the answer: hints end before it")
    nothing = ("curate", 1, "train", {"kept": 3}), ("hint", 0, "train", {"rows": 3, "problems": 3})
    assert remarked(Store(tmp_path / "none"), *nothing) == []


def test_evaluated_problems_that_are_trained_on_are_counted_by_text_and_by_id(tmp_path: Path) -> None:
    store = Store(tmp_path)
    asked = [[{"role": "user", "content": "What is 4 + 4?"}]]
    trained = store.put(
        "problems",
        pa.concat_tables(
            [
                pa.table({"problem_id": ["a", "b", "c"], "question": ["1 + 1 =", "Two\tPlus Two", "3 + 3 ="]}),
                pa.table({"problem_id": ["d"], "messages": asked}),
            ],
            promote_options="default",
        ),
    )
    heldout = pa.table(
        {"problem_id": ["w", "x", "y", "c"], "question": ["1+1=", "two plus two", "what is 4 + 4?", "9 + 9 ="]}
    )
    said, runs = shared_problems(store, trained, store.put("problems", heldout), "heldout")
    told = "4 of the 4 problems of heldout are trained on, too, 1 by their id alone"
    assert said == f"{told}: figures there are not of unseen ones"
    leaves = 'curate.filters = ["decontaminated"] leaves them out'
    assert runs == (
        f"3 of the 4 training problems share 13 words in a row with a problem of heldout, or all their text: {leaves}"
    )
    said, _ = shared_problems(store, trained, store.put("problems", heldout.slice(0, 1)), "test")
    assert said.startswith("1 of the 1 ")
    other = pa.table({"problem_id": ["z"], "question": ["5 + 5 ="]})
    assert shared_problems(store, trained, store.put("problems", other), "heldout") == []


def test_training_problems_that_share_words_in_a_row_with_evaluated_ones_are_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    thirteen = "Ann has seven red apples and gives three of them to her brother"
    asked = [f"{thirteen}. How many are left?", "So ANN has, seven red apples and gives three of them to her (brother)"]
    trained = store.put("problems", pa.table({"problem_id": ["a", "b", "c"], "question": [*asked, "1 + 1 ="]}))
    heldout = store.put("problems", pa.table({"problem_id": ["x"], "question": [f"{thirteen}! How many has he?"]}))
    counted = "2 of the 3 training problems share 13 words in a row with a problem of test, or all their text"
    (said,) = shared_problems(store, trained, heldout, "test")
    assert said == f'{counted}: curate.filters = ["decontaminated"] leaves them out'
    (said,) = shared_problems(store, trained, heldout, "test", filtered=True)
    assert said == f"{counted}: the filter decontaminated leaves them out"
    other = store.put("problems", pa.table({"problem_id": ["y", "a"], "question": ["1 + 1 = 2?", "9 ="]}))
    (said, none) = shared_problems(store, trained, other, "test", always=True)
    assert said.startswith("1 of the 2 problems of test are trained on, too, 1 by their id alone")
    assert none == "no training problem shares 13 words in a row, or all its text, with a problem of test"


def test_more_text_than_is_compared_for_a_remark_is_said_in_the_report_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    trained = store.put("problems", pa.table({"problem_id": ["a", "b"], "question": ["1 + 1 =", "2 + 2 ="]}))
    heldout = store.put("problems", pa.table({"problem_id": ["x"], "question": ["1 + 1="]}))
    monkeypatch.setattr("gradus.tasks.inspect.remarks.MAX_CHARS", 13)
    (same,) = shared_problems(store, trained, heldout, "test")
    assert same == "1 of the 1 problems of test are trained on, too: figures there are not of unseen ones"
    assert shared_problems(store, trained, heldout, "test", filtered=True, always=True) == []
    (same, said) = shared_problems(store, trained, heldout, "test", always=True)
    assert said.startswith("runs of 13 words of 2 training problems were not compared with test, which takes long")
    monkeypatch.setattr("gradus.tasks.inspect.remarks.MAX_CHARS", 14)
    assert len(shared_problems(store, trained, heldout, "test")) == 2


def test_problems_that_are_left_out_are_not_said_to_be_trained_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    trained = store.put("problems", pa.table({"problem_id": ["a", "b"], "question": ["1 + 1 =", "2 + 2 ="]}))
    heldout = store.put("problems", pa.table({"problem_id": ["x"], "question": ["1 + 1="]}))
    same = "1 of the 1 problems of test are trained on, too: figures there are not of unseen ones"
    assert shared_problems(store, trained, heldout, "test")[0] == same
    (said,) = shared_problems(store, trained, heldout, "test", filtered=True)
    assert said.endswith("the filter decontaminated leaves them out")


def test_pass_rates_that_nothing_measured_are_said(tmp_path: Path) -> None:
    rewards = {"rows": 119, "rollouts": 1840, "judged": 0}
    plan = {"kept": 119, "unmeasured": 119}
    measured = ("difficulty", 1, "train", {"rows": 119, "rollouts": 1840, "judged": 1})
    stages = ("difficulty", 0, "train", rewards), ("curate", 1, "train", plan), measured
    assert remarked(Store(tmp_path), *stages) == [
        "no rollout has a verdict: the pass rates of all 119 problems are unmeasured (n = 0)",
        "no problem has a measured pass rate: the filters on it kept all 119",
    ]
