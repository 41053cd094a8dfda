"""Sources: the facts of the real files, and every kind of bad row counted with its place."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.data.lake.schema import ROLLOUTS
from gradus.data.sources.formats import last_boxed, sentences
from gradus.data.sources.problems import problems_table
from gradus.data.sources.reading import Refused
from gradus.data.sources.streams import open_source
from gradus.data.sources.tabular import read_user_table

REAL = Path(__file__).parents[3].parent / "shared" / "data"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the shared real data is not beside this checkout")


def ingest(source: str, **options: Any) -> tuple[list[dict[str, Any]], Refused]:
    refused = Refused()
    opened = open_source(source, refused, split="train", subset="", revision="", streaming=False, generator={})
    chosen = {"name": "t", "format_name": "auto", "columns": {}, "strict": False, **options}
    return problems_table(opened, refused, **chosen).to_pylist(), refused


@real
def test_gsm8k_train_has_the_facts_of_its_readme() -> None:
    rows, refused = ingest(str(REAL / "gsm8k" / "train.jsonl"))
    assert (len(rows), dict(refused.reasons)) == (7473, {})
    raw = [json.loads(row["extra"])["gold"] for row in rows]
    assert sum("," in gold for gold in raw) == 79
    assert sum(row["answer"].startswith("-") for row in rows) == 3
    assert not any("," in row["answer"] or "/" in row["answer"] for row in rows)
    assert not any("<<" in row["solution"] for row in rows)
    # The README counts lines; four solutions have an empty one, which is no step.
    steps = Counter(len(row["solution"].split("\n")) for row in rows)
    assert steps == {2: 1961, 3: 2149, 4: 1659, 5: 955, 6: 419, 7: 227, 8: 90, 9: 13}


@real
def test_gsm8k_test_has_the_facts_of_its_readme() -> None:
    rows, _ = ingest(str(REAL / "gsm8k" / "test.jsonl"))
    assert len(rows) == 1319
    assert sum("," in json.loads(row["extra"])["gold"] for row in rows) == 14
    assert sum(row["answer"].startswith("-") for row in rows) == 2


@real
def test_every_gold_of_math_is_found() -> None:
    rows, refused = ingest(str(REAL / "math" / "test.jsonl"))
    assert (len(rows), dict(refused.reasons)) == (5000, {})
    assert all(row["answer"] for row in rows)


@real
def test_the_hint_table_has_its_tiers_and_buckets() -> None:
    rows, _ = ingest(str(REAL / "hints" / "deepscaler_val200_hints.parquet"))
    assert len(rows) == 179
    assert Counter(row["domain"] for row in rows) == {"hard": 87, "medium": 46, "easy": 46}
    extras = [json.loads(row["extra"]) for row in rows]
    assert all(len(extra["tiers"]) == 3 for extra in extras)
    bucket = {"hard": lambda k: k == 0, "medium": lambda k: 0 < k <= 4, "easy": lambda k: k > 4}
    assert all(bucket[extra["difficulty_bucket"]](extra["k"]) and extra["n"] == 8 for extra in extras)
    assert [row["answer"] for row, extra in zip(rows, extras, strict=True) if extra["gold"] == "081"] == ["81"]


def test_an_answer_that_is_compared_in_another_form_is_kept_as_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    rows = [
        {"question": "a?", "answer": "033"},
        {"question": "b?", "answer": "4"},
        {"question": "c?", "answer": "1,200"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, _ = ingest(str(file))
    assert [row["answer"] for row in found] == ["33", "4", "1200"]
    assert [row["answer_given"] for row in found] == ["033", None, "1,200"]
    file.write_text(json.dumps(rows[1]))
    assert "answer_given" not in ingest(str(file))[0][0]  # and the table is as it was before


def test_every_bad_row_is_counted_with_its_reason_and_place(tmp_path: Path) -> None:
    good = {"question": "1+1?", "answer": "2"}
    lines = [
        json.dumps(good).encode(),
        b"{not json",
        b"[1, 2]",
        b'{"question": "\xff", "answer": "1"}',
        json.dumps({"question": "", "answer": "1"}).encode(),
        json.dumps({"question": "no gold"}).encode(),
        json.dumps({"question": 7, "answer": "1"}).encode(),
        json.dumps({"question": " 1+1? ", "answer": "2"}).encode(),
        json.dumps({"question": "1+1?", "answer": "3"}).encode(),
        json.dumps({"question": "a\0b", "answer": "3"}).encode(),
        b"",
        json.dumps({"question": "big?", "answer": "1,200"}).encode(),
        rb'{"question": "half \ud83d", "answer": "1"}',
        json.dumps({"messages": "hello", "answer": "1"}).encode(),
        json.dumps({"messages": [{"role": "user"}], "answer": "1"}).encode(),
        json.dumps({"question": "steps?", "answer": "1", "solution": ["a", "b"]}).encode(),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    rows, refused = ingest(str(path))
    assert [row["answer"] for row in rows] == ["2", "1200"]
    assert refused.reasons == {
        "not valid JSON": 1,
        "not a JSON object": 1,
        "not valid UTF-8": 1,
        "empty question": 1,
        "no answer": 1,
        "question is not text": 1,
        "duplicate question": 1,
        "conflicting duplicate": 1,
        "question holds a NUL character": 1,
        "not valid Unicode (half of a surrogate pair)": 1,
        "messages is not a list of objects with role and content": 2,
        "solution is not text": 1,
    }
    assert f"{path} line 2: not valid JSON" in refused.examples
    with pytest.raises(BadInputError, match="line 2: not valid JSON"):
        ingest(str(path), strict=True)


def test_columns_are_renamed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "1+1?", "gold": 2}) + "\n")
    rows, _ = ingest(str(path), columns={"question": "prompt", "answer": "gold"})
    assert (rows[0]["question"], rows[0]["answer"]) == ("1+1?", "2")


def test_a_column_may_lie_in_an_object(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = {"prompt": "1+1?", "reward_model": {"style": "rule", "ground_truth": {"target": 2}}}
    path.write_text(json.dumps(first) + "\n" + json.dumps({"prompt": "1+2?", "reward_model": None}) + "\n")
    names = {"question": "prompt", "answer": "reward_model.ground_truth.target"}
    rows, refused = ingest(str(path), columns=names)
    assert [(row["question"], row["answer"]) for row in rows] == [("1+1?", "2")]
    assert dict(refused.reasons) == {"no answer": 1}
    pq.write_table(pa.Table.from_pylist([first]), tmp_path / "rows.parquet")
    assert ingest(str(tmp_path / "rows.parquet"), columns=names)[0][0]["answer"] == "2"
    for wrong in ("reward_model.gold", "reward_model.style.gold", "reward_model."):
        with pytest.raises(BadInputError, match=f"has no column {wrong} that could be answer"):
            ingest(str(path), columns={**names, "answer": wrong})


def test_a_file_without_a_problem_is_refused_with_the_reasons(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "x"}\n')
    with pytest.raises(BadInputError, match="no question: 1"):
        ingest(str(path))


def test_a_hub_dataset_needs_its_revision() -> None:
    with pytest.raises(UsageError, match="needs its revision"):
        ingest("openai/gsm8k")


@pytest.mark.parametrize("streaming", [False, True])
def test_a_local_hugging_face_dataset_is_read_whole_or_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "mine"
    (folder / "data").mkdir(parents=True)
    for split, count in (("train", 3), ("test", 2)):
        rows = [{"question": f"{split} {i}?", "answer": str(i)} for i in range(count)]
        (folder / "data" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused = Refused()
    opened = open_source(str(folder), refused, split="test", subset="", revision="", streaming=streaming, generator={})
    rows = problems_table(opened, refused, name="t", format_name="auto", columns={}, strict=False).to_pylist()
    assert [(row["question"], row["answer"]) for row in rows] == [("test 0?", "0"), ("test 1?", "1")]
    with pytest.raises(BadInputError, match="cannot be loaded"):
        open_source(str(folder), refused, split="dev", subset="", revision="", streaming=streaming, generator={})


def test_a_reasoning_gym_family_gives_worked_solutions() -> None:
    refused = Refused()
    generator = {"min_terms": 3, "max_terms": 3, "size": 5, "seed": 4}
    opened = open_source(
        "reasoning-gym:chain_sum", refused, split="", subset="", revision="", streaming=False, generator=generator
    )
    rows = problems_table(opened, refused, name="t", format_name="auto", columns={}, strict=False).to_pylist()
    assert [row["domain"] for row in rows] == ["chain_sum/2"] * 5
    assert all(row["solution"].rsplit("=", 1)[1] == row["answer"] for row in rows)


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        (r"so \boxed{\frac{1}{2}} and \boxed{3}", "3"),
        (r"\boxed{\frac{a}{\sqrt{2}}}", r"\frac{a}{\sqrt{2}}"),
        (r"\fbox{7}", "7"),
        (r"$\boxed 5$.", "5"),
        ("none", None),
        (r"\boxed{open", None),
    ],
)
def test_the_last_box_with_balanced_braces_counts(text: str, gold: str | None) -> None:
    assert last_boxed(text) == gold


def test_sentences_are_not_cut_inside_mathematics() -> None:
    text = "First $a. b$ holds. Then \\[ x. \ny \\] ends. Done."
    assert sentences(text) == ["First $a. b$ holds.", "Then \\[ x. y \\] ends.", "Done."]


def test_a_users_table_names_the_row_that_lacks_a_column(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"problem_id": "a", "completion": "x", "mine": {"k": 1}}\n{"problem_id": "b"}\n')
    with pytest.raises(BadInputError, match="line 2: no completion"):
        read_user_table(path, ROLLOUTS, {})


HINTED = {"question": "1+1?", "reward_model": {"ground_truth": "2"}, "solution_breakdown_parts": ["1+1=2"]}


@pytest.mark.parametrize(
    ("row", "format_name", "reason"),
    [
        ({**HINTED, "reward_model": "2"}, "hints", "reward_model is not an object"),
        ({**HINTED, "rollout_reward_list": ["x"]}, "hints", "rollout_reward_list is not a list of numbers"),
        ({**HINTED, "rollout_reward_list": [float("nan")]}, "hints", "rollout_reward_list is not a list of finite"),
        ({**HINTED, "rollout_reward_list": [10**400]}, "hints", "rollout_reward_list is not a list of finite"),
        ({**HINTED, "solution_breakdown_parts": "1+1"}, "hints", "solution_breakdown_parts is not a list of texts"),
        ({"question": "1+1?", "answer": "2"}, "reasoning", "metadata is not an object"),
        ({"metadata": {"source_dataset": "chain_sum"}}, "reasoning", "not an item of chain_sum"),
    ],
)
def test_a_row_that_its_format_cannot_read_is_refused(
    tmp_path: Path, row: dict[str, Any], format_name: str, reason: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(BadInputError, match=reason):
        ingest(str(path), format_name=format_name)


def test_an_answer_of_hundreds_of_digits_is_kept_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "10 to the power of 400", "answer": 10**400}) + "\n")
    found, _ = ingest(str(path))
    assert [row["answer"] for row in found] == [str(10**400)]


def test_a_users_table_with_half_a_character_or_a_number_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"problem_id": "a", "completion": "\\udc00"}\n')
    with pytest.raises(BadInputError, match=r"rollouts.jsonl line 1: not valid Unicode"):
        read_user_table(path, ROLLOUTS, {})
    path.write_text('{"problem_id": "a", "completion": "1", "seed": 100000000000000000000}\n')
    with pytest.raises(BadInputError, match="line 1: seed is a number of over 64 bits; write a whole number"):
        read_user_table(path, ROLLOUTS, {})
    for name, value in (("temperature", 10**400), ("logprobs", [-0.5, 10**400])):
        path.write_text(json.dumps({"problem_id": "a", "completion": "1", name: value}) + "\n")
        with pytest.raises(BadInputError, match=f"line 1: {name} is .* of over 64 bits; write a"):
            read_user_table(path, ROLLOUTS, {})


def test_questions_that_occur_again_are_dropped_or_kept_each_under_an_id_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"problem_id": f"p{i}", "question": "1 + 1 =" if i % 2 else "1 +  1 =", "answer": "2"} for i in range(16)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, refused = ingest(str(file))
    assert (len(found), dict(refused.reasons)) == (1, {"duplicate question": 15})
    found, refused = ingest(str(file), keep_duplicates=True)
    assert ([row["problem_id"] for row in found], dict(refused.reasons)) == ([f"p{i}" for i in range(16)], {})
    file.write_text('{"question": "1 + 1 =", "answer": "2"}\n' * 3 + '{"question": "1 + 1 =", "answer": "3"}\n')
    found, _ = ingest(str(file), keep_duplicates=True)
    assert len({row["problem_id"] for row in found}) == 4
    assert found[1]["problem_id"] == f"{found[0]['problem_id']}-2"


def test_the_hint_names_the_field_that_rows_lack_and_the_columns_that_there_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1=", "gold": "2"}\n{"gold": "3"}\n{"question": "2+2=", "gold": "4"}\n')
    with pytest.raises(BadInputError, match=r"--map answer=COLUMN` .*; its columns are question, gold$"):
        ingest(str(path))


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"", "give a file with a problem on each line"),
        (b"[1]\n", "correct the file (first rows.jsonl line 1: not a JSON object)"),
        (b'{"question": "caf\xe9", "answer": "1"}\n', "correct the file (first rows.jsonl line 1: not valid UTF-8)"),
        (b'{"question": "1 + 1", "answer": ""}\n', "correct the file (first rows.jsonl line 1: empty answer)"),
    ],
)
def test_a_file_whose_columns_have_our_names_gets_no_hint_to_rename_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_bytes(content)
    with pytest.raises(BadInputError) as error:
        ingest("rows.jsonl")
    assert error.value.hint == hint


def test_a_number_is_a_domain(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1+1=", "answer": "2", "domain": 7, "source": 1.5}\n')
    (row,), refused = ingest(str(path))
    assert (row["domain"], row["source"], refused.reasons) == ("7", "1.5", {})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"level": 2}, {"level": 2}),
        ({"extra": {"tests": [1]}}, {"tests": [1]}),
        ({"extra": {"tests": [1], "level": 1}, "level": 2}, {"tests": [1], "level": 2}),
        ({"extra": '{"tests": [1]}', "level": 2}, {"tests": [1], "level": 2}),
        ({"extra": "a note", "level": 2}, {"extra": "a note", "level": 2}),
        ({"extra": 3}, {"extra": 3}),
        ({}, {}),
    ],
)
def test_what_extra_holds_stays_beside_the_other_columns(
    given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"question": "1+1=", "answer": "2", **given}) + "\n")
    ((row,), _) = ingest(str(tmp_path / "p.jsonl"))
    assert json.loads(row["extra"]) == expected


def test_a_text_in_extra_alone_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"question": "1+1=", "answer": "2", "extra": '{"a":  1}'}) + "\n")
    ((row,), _) = ingest(str(tmp_path / "p.jsonl"))
    assert row["extra"] == '{"a":  1}'
