"""A finished training, read: its report has the figures of its Parquet files, and can be browsed."""

import asyncio
import contextlib
import json
import re
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradus.flows.console.browser.program import Browser
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.sql_views import open_run
from tests.e2e.conftest import Program, on_a_terminal
from tests.patience import until

Undisturbed = tuple[Program, dict[str, Any]]


class Tables(HTMLParser):
    """Rows of the tables of a page, by the id of the figure that they are in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.figure = ""
        self.rows: dict[str, list[list[str]]] = {}
        self.cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "figure":
            self.figure = dict(attrs)["id"] or ""
        if tag == "tr":
            self.rows.setdefault(self.figure, []).append([])
        self.cell = tag in ("td", "th")
        if self.cell:
            self.rows[self.figure][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.cell = False

    def handle_data(self, data: str) -> None:
        if self.cell:
            self.rows[self.figure][-1][-1] += data


def read(program: Program, run: str, stage: str) -> dict[tuple[int, str], pa.Table]:
    """Tables that a stage of the run wrote, straight from Parquet, by round and purpose."""
    made = [e for e in program.events(run) if e["event"] == "stage_started" and e["stage"] == stage]
    return {(e["round"], e["purpose"]): pq.read_table(program.home / "lake" / e["output"]) for e in made}


def first_number(cell: str) -> float:
    return float(re.split(r"[ \[]", cell.replace(",", ""))[0])


def test_the_report_has_the_figures_of_the_parquet_files(undisturbed: Undisturbed, tmp_path: Path) -> None:
    program, result = undisturbed
    done = program.json(
        "report", result["run"], "--out", str(tmp_path / "page.html"), "--pictures", str(tmp_path / "png")
    )
    assert [Path(path).exists() for path in done["files"]] == [True] * len(done["files"])
    tables = Tables((tmp_path / "page.html").read_text(encoding="utf-8")).rows
    scores, rollouts = (read(program, result["run"], stage) for stage in ("score", "rollout"))
    for figure, column, found in (
        ("reward", "reward", scores),
        ("length", "completion_tokens", rollouts),
    ):
        head, *rows = tables[figure]
        shown = {(int(row[0]), name): cell for row in rows for name, cell in zip(head[1:], row[1:], strict=True)}
        for key, table in found.items():
            if figure == "reward" and key[1] == "eval":
                continue
            values = table[column].to_pylist()
            mean = np.mean([len(value) if isinstance(value, list) else value for value in values])
            assert first_number(shown.pop(key)) == pytest.approx(mean, rel=0.005), key
        assert set(shown.values()) <= {"-"}
    head, *rows = tables["pass-at-k-heldout"]
    for row in rows:
        right = scores[int(row[0]), "eval"]["correct"].to_pylist()
        assert first_number(row[head.index("pass@1")]) == pytest.approx(np.mean(right), rel=0.005)
    tokens = {row[0]: int(row[-1].replace(",", "") or 0) for row in tables["costs-by-stage"][1:]}
    sampled = sum(len(t) for table in rollouts.values() for t in table["completion_tokens"].to_pylist())
    assert sum(tokens.values()) == sampled


def test_the_report_and_the_table_of_samples_are_files_of_the_run_in_mlflow(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    query = """select artifact_uri from runs join tags using (run_uuid) where key = 'gradus.run' and value = ?
        and run_uuid in (select run_uuid from tags where key = 'mlflow.loggedArtifacts')
        and run_uuid not in (select run_uuid from tags where key = 'mlflow.parentRunId')"""  # rows of stages
    with contextlib.closing(sqlite3.connect(program.home / "mlflow" / "mlflow.db")) as database:
        found = until(lambda: database.execute(query, [result["run"]]).fetchall(), 300, 0.2)
    folder = Path(found[0][0].removeprefix("file://"))
    assert ": finished." in (folder / "report.html").read_text(encoding="utf-8")
    table = json.loads((folder / "samples.json").read_text())
    assert "completion" in table["columns"]
    assert table["data"]


def test_the_training_can_be_browsed(undisturbed: Undisturbed) -> None:
    program, result = undisturbed

    async def look() -> None:
        with open_run(Home(program.home), result["run"], pytest.fail) as rows:
            app = Browser(rows)
            async with app.run_test(size=(80, 24)) as pilot:
                for keys in (["3"], ["o"], ["enter"], ["right"], ["escape"], ["2"], ["o"], ["enter"]):
                    await pilot.press(*keys)
                    await pilot.pause()
                shown = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert "groups of" in shown

    asyncio.run(look())
    assert b"rounds" in on_a_terminal(program, b"quit", b"q", "browse", result["run"])


def test_a_run_is_deleted_once_that_is_agreed_at_a_terminal(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    before = sorted(program.home.glob("lake/*/*/*"))
    said = on_a_terminal(program, b"[y/N]", b"n\n", "runs", "--delete", result["run"])
    assert b"nothing was deleted" in said
    assert sorted(program.home.glob("lake/*/*/*")) == before
