"""The commands of README and docs/ as they stand there, on a finished run; one query is counted a second way."""

import json
import re
import shlex
import shutil
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Program

README = (ROOT / "README.md").read_text()
FOLDER = ROOT / "docs"
PAGES = "\n".join(page.read_text() for page in [*sorted(FOLDER.glob("*.md")), FOLDER / "how-to" / "does-not-learn.md"])
QUICK = {"runs", "show", "sql", "methods", "ingest", "curate", "hint", "score", "report"}
"""Verbs that need neither a policy nor another minute."""


def commands(prose: str = README) -> dict[str, list[list[str]]]:
    """Every command of indented blocks and of the table of stages, in words without the program's name, by verb."""
    blocks = re.findall(r"^    (?:\.venv/bin/)?gradus (.*)$", prose, re.MULTILINE)
    cells = re.findall(r"^\|.*\| `gradus (.*)` \|$", prose, re.MULTILINE)
    found: dict[str, list[list[str]]] = defaultdict(list)
    for text in [*blocks, *cells]:
        words = shlex.split(text, comments=True)
        found[words[0]].append(words)
    return found


@pytest.fixture(scope="module")
def finished(
    undisturbed: tuple[Program, dict[str, Any]], new_program: Callable[..., Program]
) -> tuple[Program, dict[str, str]]:
    """A home with a finished run and a server that is up, and what the placeholders in the commands stand for."""
    calm, result = undisturbed
    program = new_program(warm=True)
    for part in ("lake", "runs"):
        shutil.copytree(calm.home / part, program.home / part)
    run = result["run"]
    rows = [{"problem_id": str(i), "completion": rf"\boxed{{{i}}}", "answer": str(i)} for i in range(3)]
    (program.home / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward = re.search(r"```python\n(def function.*?)```", PAGES, re.DOTALL)
    assert reward
    (program.home / "mine.py").write_text(reward[1])
    problems, difficulty = calm.outputs(run, "ingest")[0], calm.outputs(run, "difficulty")[-1]
    named = {"P": problems.relative_to(calm.home / "lake"), "D": difficulty.relative_to(calm.home / "lake")}
    tests = {"inputs": ["1 2\n"], "outputs": ["3\n"]}
    problem = {"problem_id": "add", "question": "Add.", "tests": tests}
    (program.home / "tested.jsonl").write_text(json.dumps(problem) + "\n")
    code = "```python\nprint(sum(map(int, input().split())))\n```"
    (program.home / "programs.jsonl").write_text(json.dumps({"problem_id": "add", "completion": code}) + "\n")
    tested = program.json("ingest", "tested.jsonl", "--set", "answers=optional")["artifact"]
    files = {"FILE": "mine.jsonl", "path/to/file.py:function": "mine.py:function", "problems/DIGEST": tested}
    return program, {"RUN": run, **files, **{name: str(ref) for name, ref in named.items()}}


def meant(words: list[str], stands: dict[str, str]) -> list[str]:
    return [stands.get(word, word) for word in words]


def test_the_readme_names_commands_for_all_that_is_quick() -> None:
    assert set(commands()) >= QUICK - {"methods"}


@pytest.mark.parametrize("verb", sorted(QUICK))
def test_a_quick_command_of_the_prose_runs_as_it_stands(finished: tuple[Program, dict[str, str]], verb: str) -> None:
    program, stands = finished
    for words in commands(f"{README}\n{PAGES}").get(verb, [[verb]]):
        code, out, err = program.run(*meant(words, stands))
        assert code == 0, err
        assert out.strip()
        assert "Traceback" not in err


def by_hand(program: Program, run: str) -> list[tuple[str, int, float]]:
    """Purpose, hint level and reward of every rollout of a run: journal, manifests and Parquet, row by row."""
    events = [event for event in program.events(run) if event.get("stage") == "score" and "output" in event]
    found: list[tuple[str, int, float]] = []
    for purpose, output in sorted(
        {(event["round"], event["purpose"]): (event["purpose"], event["output"]) for event in events}.values()
    ):
        (manifest,) = (program.home / "lake" / output).glob("*manifest.json")
        (parent,) = json.loads(manifest.read_bytes())["parents"]["rollouts"]
        rollouts, scores = program.rows(parent), program.rows(output)
        rewards = {row["rollout_id"]: row["reward"] for row in scores}
        assert len(rewards) == len(rollouts)
        found += [(purpose, row["hint_level"], rewards[row["rollout_id"]]) for row in rollouts]
    return found


def test_the_sql_of_the_readme_says_what_the_files_say(finished: tuple[Program, dict[str, str]]) -> None:
    program, stands = finished
    rows = by_hand(program, stands["RUN"])
    cells: dict[tuple[str, int], list[float]] = defaultdict(list)
    for purpose, level, reward in rows:
        cells[purpose, level].append(reward)
    assert {purpose for purpose, _ in cells} == {"eval", "escalate1", "profile", "train"}
    expected = [[*key, len(values), pytest.approx(sum(values) / len(values))] for key, values in sorted(cells.items())]
    (words,) = [words for words in commands()["sql"] if "avg(reward)" in words[1]]
    assert program.json(*meant(words, stands))["rows"] == expected


def test_a_join_by_rollout_id_pairs_each_rollout_once(finished: tuple[Program, dict[str, str]]) -> None:
    program, stands = finished
    rows = by_hand(program, stands["RUN"])
    sql = "select count(*), sum(reward), count(distinct rollout_id) from rollouts join scores using (rollout_id)"
    found = program.json("sql", sql, "--run", stands["RUN"])["rows"]
    assert found == [[len(rows), pytest.approx(sum(reward for _, _, reward in rows)), len(rows)]]
