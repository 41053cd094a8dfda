"""Sets, calls, rankings, records, constraints, assignments, months and queries: by hand, by scikit-learn, by search."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from gradus.models.judging.pool import JudgePool
from gradus.models.rewards import resolve
from gradus.models.rewards.judges.structures.assignments import judge_satisfied
from gradus.models.rewards.judges.structures.calls import judge_tool_calls, soft_iou
from gradus.models.rewards.judges.structures.constraints import judge_constraints
from gradus.models.rewards.judges.structures.dates import judge_month_distance
from gradus.models.rewards.judges.structures.items import judge_items
from gradus.models.rewards.judges.structures.json_form import judge_json_record
from gradus.models.rewards.judges.structures.queries import judge_sql_result
from gradus.models.rewards.judges.structures.ranking import judge_ndcg, ndcg, ranked

MANY = 10_000


@pytest.mark.parametrize(
    ("said", "settings", "expected"),
    [
        ('["a.py", "b.py", "c.py"]', {}, 1.0),
        ("#### c.py, a.py, b.py", {}, 1.0),
        ("The answer is: a.py; d.py", {}, 2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3)),
        ("#### a.py, a.py, a.py", {}, 2 * 1 * (1 / 3) / (1 + 1 / 3)),
        ("#### a.py, d.py", {"beta": 2.0}, 5 * (1 / 2) * (1 / 3) / (4 * (1 / 2) + 1 / 3)),
        ("#### c.py, a.py, b.py", {"ordered": True}, 2 / 3),
        ("#### d.py", {}, 0.0),
    ],
)
def test_items_by_their_f(said: str, settings: dict[str, Any], expected: float) -> None:
    for gold, row in ((json.dumps(["a.py", "b.py", "c.py"]), {}), ("", {"items": ["a.py", "B.py", "c.py"]})):
        assert judge_items({"completion": said, **row}, gold, MANY, **settings).value == pytest.approx(expected)


def test_items_of_nothing() -> None:
    assert judge_items({"completion": "<think>a"}, "a, b", MANY).outcome == "unparsed"
    assert judge_items({"completion": "a"}, "", MANY).outcome == "error"


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}


EXPECTED = [call("weather", city="New York", days=3), call("mail", to="Ann")]
CALLS = [
    (EXPECTED, 1.0),
    (EXPECTED[::-1], 1.0),
    ([], 0.0),
    (EXPECTED[:1], 1 / 2),
    ([*EXPECTED, call("mail", to="Bob")], 2 / 3),
    # ROUGE-L of York and New York is 2/3, days are equal: 5/3 of 2; the other call is missing: (5/6) / 2.
    ([call("weather", city="York", days=3)], 5 / 12),
    # One more argument: 2 of 3.
    ([call("weather", city="New York", days=3, unit="C"), call("mail", to="Ann")], (2 / 3 + 1) / 2),
    ([call("weather", city="New York", days=True), call("mail", to="Ann")], (1 / 2 + 1) / 2),
]


@pytest.mark.parametrize(("calls", "expected"), CALLS, ids=[str(at) for at in range(len(CALLS))])
def test_calls_by_their_soft_iou(calls: list[Any], expected: float) -> None:
    assert soft_iou(calls, EXPECTED) == pytest.approx(expected)
    row = {"completion": f"```json\n{json.dumps(calls)}\n```", "extra": json.dumps({"calls": EXPECTED})}
    assert judge_tool_calls(row, "", MANY).value == pytest.approx(expected)


def test_the_most_similar_call_that_is_left_is_taken() -> None:
    wanted = [call("mail", to="Ann", text="a b"), call("mail", to="Bob", text="a b")]
    said = [call("mail", to="Bob", text="a b"), call("mail", to="Ann", text="a b")]
    assert soft_iou(said, wanted) == 1.0
    assert soft_iou([call("mail", urgent=True)], [call("mail", urgent=1)]) == 0.0


def test_calls_that_are_none_and_replies_without_any() -> None:
    def value(said: str, gold: str = "", **row: Any) -> float | None:
        return judge_tool_calls({"completion": said, **row}, gold, MANY).value

    tools = {"weather": ["city", "days"], "mail": ["to"]}
    assert value('[{"name": "weather"', calls=EXPECTED) == -1.0
    assert value('[{"tool": "weather"}]', calls=EXPECTED) == -1.0
    assert value(json.dumps([call("weather", town="X")]), calls=EXPECTED, tools=tools) == -1.0
    assert value(json.dumps([call("post", to="X")]), calls=EXPECTED, tools=tools) == -1.0
    assert value("I cannot.", calls=EXPECTED) == 0.0
    assert value("It is sunny in York", "It is sunny") == pytest.approx(2 * (3 / 5) / (1 + 3 / 5))
    assert value(json.dumps(EXPECTED), calls=[]) == 0.0
    assert judge_tool_calls({"completion": "x"}, "", MANY).outcome == "error"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1000)), min_size=2, max_size=8), st.integers(0, 5))
def test_ndcg_is_that_of_scikit_learn(pairs: list[tuple[int, int]], top: int) -> None:
    relevance = {f"d{at}": float(one) for at, (one, _) in enumerate(pairs)}
    scores = {f"d{at}": float(other) + at / 100 for at, (_, other) in enumerate(pairs)}  # no ties
    if not any(relevance.values()):
        return
    gains = [[2**each - 1 for each in relevance.values()]]
    expected = ndcg_score(gains, [list(scores.values())], k=top or None)
    assert ndcg(ranked(scores, relevance), relevance, top) == pytest.approx(expected)
    verdict = judge_ndcg({"completion": json.dumps(scores), "relevance": relevance}, "", MANY, top=top)
    assert verdict.value == pytest.approx(expected)


def test_ties_and_documents_left_out_come_in_the_worst_order() -> None:
    relevance = {"a": 2, "b": 1, "c": 0}
    assert ranked({"a": 1, "b": 1, "c": 1}, relevance) == ["c", "b", "a"]
    assert ranked(["a"], relevance) == ["a", "c", "b"]
    assert ranked(["b", "a", "b", "x"], relevance) == ["b", "a", "c"]

    def value(said: object, **settings: float) -> float | None:
        row = {"completion": json.dumps(said)}
        return judge_ndcg(row, json.dumps(relevance), MANY, **settings).value

    assert value(["a", "b", "c"]) == 1.0
    assert value({"a": 4, "b": 2, "c": 0}, alignment=1.0) == 1.0
    assert value({"a": 1, "b": 1, "c": 1}, alignment=1.0) == pytest.approx(1 - (1 / 3 + 0 + 1 / 3) / 2)
    assert judge_ndcg({"completion": "none"}, json.dumps(relevance), MANY).outcome == "unparsed"
    for none in ({}, {"a": 0}, {"a": -1, "b": 1}, {"a": True}, {"a": 1e9}):
        assert judge_ndcg({"completion": "[]"}, json.dumps(none), MANY).outcome == "error"


RECORD = {"name": "Ann", "age": 3, "ok": True, "tags": ["x"]}
SCHEMA = {"type": "object", "required": ["name"], "properties": {"age": {"type": "integer"}}}
RECORDS = [
    (json.dumps(RECORD), 1.0),
    (f"```json\n{json.dumps(RECORD)}\n```", 1.0),
    (f"Here it is: {json.dumps(RECORD)}", 3 / 4),
    (json.dumps({"name": "Ann", "age": 4}), (1 / 2 + 1 + 1 + 1 / 4) / 4),
    (json.dumps({"name": "Ann", "age": "3"}), (1 / 2 + 1 + 0 + 1 / 4) / 4),
    (json.dumps({**RECORD, "ok": 1}), (1 + 1 + 1 + 3 / 4) / 4),
    ("{'name': 'Ann'}", 0.0),
    ('{"name": "Ann", "name": "Bob"}', 0.0),
]


@pytest.mark.parametrize(("said", "expected"), RECORDS, ids=[str(at) for at in range(len(RECORDS))])
def test_records_by_keys_form_validity_and_values(said: str, expected: float) -> None:
    row = {"completion": said, "extra": json.dumps({"record": RECORD, "schema": SCHEMA})}
    assert judge_json_record(row, "", MANY).value == pytest.approx(expected)
    only = judge_json_record(row, "", MANY, structure=0.0, form=0.0, valid=0.0, content=2.0).value
    assert only == pytest.approx(0.0 if expected == 0 else {3 / 4: 1.0}.get(expected, only))


def test_a_schema_that_is_none_or_lies_elsewhere_is_an_error_of_the_row() -> None:
    for schema in ({"type": 3}, {"$ref": "http://127.0.0.1:9/x.json"}, {"$ref": "file:///etc/passwd"}):
        row = {"completion": json.dumps(RECORD), "record": RECORD, "schema": schema}
        assert judge_json_record(row, "", MANY).outcome == "error", schema
    assert judge_json_record({"completion": "{}"}, "no record", MANY).outcome == "error"


TEXT = "Dear Ann,\n\n- one\n- two\n\nIt rains. Stay in!"
CONSTRAINTS = [
    ({"num_words": 10}, True),
    ({"min_words": 11}, False),
    ({"max_words": 10}, True),
    ({"num_bullets": 2}, True),
    ({"num_paragraphs": 3}, True),
    ({"num_lines": 4}, True),
    ({"max_characters": len(TEXT)}, True),
    ({"min_sentences": 3}, False),
    ({"num_sentences": 2}, True),
    ({"contains": "RAINS"}, True),
    ({"excludes": "snow"}, True),
    ({"excludes": "ann"}, False),
    ({"starts_with": "dear"}, True),
    ({"ends_with": "!"}, True),
    ({"commas": False}, False),
    ({"lower_case": True}, False),
    ({"json": False}, True),
]


def test_each_constraint_by_hand() -> None:
    for constraint, met in CONSTRAINTS:
        row = {"completion": f"<think>x</think>{TEXT}", "constraints": [constraint]}
        assert judge_constraints(row, "", MANY).value == float(met), constraint


def test_the_share_of_constraints_or_all() -> None:
    row = {"completion": "one two", "extra": json.dumps({"constraints": [{"max_words": 2, "contains": "x"}]})}
    assert judge_constraints(row, "", MANY).value == 0.5
    assert judge_constraints(row, "", MANY, every=True).value == 0.0
    assert judge_constraints({**row, "completion": ""}, "", MANY).value == 0.0
    for none in (None, [], [{}], ["x"], [{"max_words": "2"}], [{"no_words": 2}], [{"contains": 3}], [{"json": 1}]):
        assert judge_constraints({"completion": "x", "constraints": none}, "", MANY).outcome == "error", none


@given(st.lists(st.lists(st.integers(1, 4) | st.integers(-4, -1), min_size=1, max_size=3), min_size=1))
def test_an_assignment_satisfies_as_a_search_says(clauses: list[list[int]]) -> None:
    for bits in itertools.product((False, True), repeat=4):
        right = all(any(bits[abs(each) - 1] == (each > 0) for each in clause) for clause in clauses)
        literals = [at if bit else -at for at, bit in enumerate(bits, start=1)]
        forms = (
            json.dumps(literals),
            json.dumps({f"x{at}": bit for at, bit in enumerate(bits, start=1)}),
            "#### " + ", ".join(f"x{at} = {int(bit)}" for at, bit in enumerate(bits, start=1)),
            "#### " + "".join(str(int(bit)) for bit in bits),
        )
        for said in forms:
            found = judge_satisfied({"completion": said, "clauses": clauses}, "", MANY)
            assert found.outcome == ("correct" if right else "wrong"), (said, clauses)


def test_a_variable_both_ways_or_left_out_satisfies_nothing() -> None:
    for said in ("[1, -1]", "[2]", "#### x1 = 1, x1 = 0"):
        assert judge_satisfied({"completion": said}, "[[1]]", MANY).outcome == "wrong"
    assert judge_satisfied({"completion": "satisfiable"}, "[[1]]", MANY).outcome == "unparsed"
    for none in ("", "[]", "[[]]", "[[0]]", "[[true]]", "[1]"):
        assert judge_satisfied({"completion": "[1]"}, none, MANY).outcome == "error", none


@pytest.mark.parametrize(
    ("said", "distance"),
    [
        ("#### 2024-05", 0),
        ("May 17, 2024", 0),
        ("It was 2023-05-30 or 2024-08", 3),
        ("in Dec. 2022", 17),
        ("2024-13", None),
    ],
)
def test_months_by_their_distance(said: str, distance: int | None) -> None:
    verdict = judge_month_distance({"completion": said}, "2024-05-01", MANY, decay=0.2)
    assert verdict.value == (0.0 if distance is None else pytest.approx(math.exp(-0.2 * distance)))
    assert judge_month_distance({"completion": said}, "soon", MANY).outcome == "error"


TABLES = {"sales": {"columns": ["city", "n"], "rows": [["A", 3], ["B", 1], ["A", 2], ["C", None]]}}
GOLD = "select city, sum(n) from sales group by city"
QUERIES = [
    ("```sql\nselect city, sum(n) as total from sales group by city order by city desc;\n```", "correct"),
    ("SELECT s.city, sum(s.n) FROM sales s GROUP BY 1", "correct"),
    ("select city, 1.0 * sum(n) from sales group by city", "correct"),
    ("select city, sum(n) from sales group by city having sum(n) > 1", "wrong"),
    ("select city, sum(n) from sale group by city", "wrong"),
    ("select sum(n), city from sales group by city", "wrong"),
    ("drop table sales", "unparsed"),
    ("select 1; select 2", "wrong"),
    ("select * from read_text('/etc/hostname')", "wrong"),
    ("select * from read_csv('http://127.0.0.1:9/x.csv')", "wrong"),
    ("from glob('/*')", "wrong"),
    ("select * from range(100000000)", "wrong"),
    ("with x as (select 1) insert into sales select 'Z', 1", "wrong"),
    ("from wanted", "wrong"),
    ("from tables", "wrong"),
    ("", "unparsed"),
]


@pytest.mark.parametrize(("said", "outcome"), QUERIES)
def test_queries_by_their_rows(said: str, outcome: str) -> None:
    row = {"completion": said, "extra": json.dumps({"tables": TABLES})}
    assert judge_sql_result(row, GOLD, MANY).outcome == outcome


def test_a_result_larger_than_a_judges_memory_is_wrong_and_the_next_row_is_judged() -> None:
    said = ("select repeat('x', 1000000) from range(9000)", GOLD)  # 9 GB
    rows = [{"completion": query, "answer": GOLD, "tables": TABLES} for query in said]
    with JudgePool(resolve("sql_result", {}, max_chars=MANY), num_workers=1, item_timeout_s=30.0) as pool:
        assert [each.verdict.outcome for each in pool.judge(rows)] == ["wrong", "correct"]


def test_no_query_reads_a_file(tmp_path: Path) -> None:
    """Each would be right if it could: the file holds what the gold selects."""
    (tmp_path / "x.csv").write_text("x\n7\n")
    for said in (
        f"from read_csv('{tmp_path}/x.csv')",
        f"from '{tmp_path}/x.csv'",
        f"select * from glob('{tmp_path}/*')",
    ):
        gold = f"select '{tmp_path}/x.csv'" if "glob" in said else "select 7"
        assert judge_sql_result({"completion": said, "tables": TABLES}, gold, MANY).outcome == "wrong", said
    assert judge_sql_result({"completion": "select 7 as x", "tables": TABLES}, "select 7", MANY).outcome == "correct"


def test_the_order_counts_if_the_gold_asks_for_it(tmp_path: Path) -> None:
    row = {"completion": "select n from sales order by n desc nulls last", "tables": TABLES}
    assert judge_sql_result(row, "select n from sales order by n", MANY).outcome == "wrong"
    assert judge_sql_result(row, "select n from sales", MANY).outcome == "correct"
    target = tmp_path / "out.csv"
    for said in (f"copy sales to '{target}'", f"select 1; copy sales to '{target}'"):
        assert judge_sql_result({**row, "completion": said}, GOLD, MANY).value == 0.0
    assert not target.exists()
    assert judge_sql_result(row, "select nothing from sales", MANY).outcome == "error"
    for none in ({}, {"a": 3}, {"a": {"columns": ["x", "x"], "rows": []}}, {"a": {"columns": ["x"], "rows": [[1, 2]]}}):
        assert judge_sql_result({"completion": "select 1", "tables": none}, "select 1", MANY).outcome == "error"
    empty = {"a": {"columns": ["x"], "rows": []}}
    assert judge_sql_result({"completion": "select x from a", "tables": empty}, "from a", MANY).outcome == "correct"
    odd = {'t"x': {"columns": ['a"b'], "rows": [[1]]}}
    assert judge_sql_result({"completion": 'from "t""x"', "tables": odd}, "select 1", MANY).outcome == "correct"
