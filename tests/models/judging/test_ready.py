"""A judge that is ready has imported what its first row needs: no row pays for a library within its limit."""

import json
import subprocess
import sys

import pytest

ROWS = {
    "quantity": ({"completion": r"\boxed{90\ \text{km/h}}"}, "25 m/s", 1.0),
    "boxes": ({"completion": "[[0, 0, 2, 2]]", "boxes": [[0, 0, 2, 2]]}, "", 1.0),
    "sql_result": (
        {"completion": "select a from t", "tables": {"t": {"columns": ["a"], "rows": [[3]]}}},
        "select 3",
        1.0,
    ),
    "math": ({"completion": r"\boxed{\frac{2}{4}}"}, "0.5", 1.0),
}

JUDGE = """
import json, sys
from gradus.models.rewards import load, resolve
name, row, gold = json.loads(sys.argv[1])
judge = load(resolve(name, {}, max_chars=1000))
before = set(sys.modules) | set(sys.stdlib_module_names)
value = judge(row, gold).value
print(json.dumps([value, sorted({name.partition(".")[0] for name in set(sys.modules) - before} - before)]))
"""


@pytest.mark.parametrize("name", ROWS)
def test_the_first_row_imports_no_library(name: str) -> None:
    row, gold, value = ROWS[name]
    command = [sys.executable, "-P", "-c", JUDGE, json.dumps([name, row, gold])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == [value, []]
