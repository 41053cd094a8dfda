"""One damaged or missing file of a home: a verb that reads prints the same answer or names the file, nothing else.

    GRADUS_FUZZ=10 pytest tests/faults/test_silent_damage.py -k anywhere        # ten times as many flipped bits

`FLIPS_OF_REPORTS` has the page of `gradus report` among the verbs, which takes a second each time.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from gradus.data.lake.store import Ref, Store
from gradus.tasks.config.settings import Home
from gradus.tasks.runs.journal import EVENTS, Journal
from gradus.tasks.runs.run_settings import RUN
from tests.faults.damaged_homes import (
    OTHER,
    QUICK,
    REPORT,
    Said,
    copied,
    flip,
    flips,
    heard,
    make_home,
    names_of,
    said,
    wrong,
)
from tests.tasks.made_run import RUN as MADE

SCALE = int(os.environ.get("GRADUS_FUZZ", "1"))
FLIPS, FLIPS_OF_REPORTS = 8 * SCALE, 1 * SCALE
VERBS = {verb: QUICK[verb] for verb in ("sql", "show", "compare")}
"""Those that read every file between them."""
FILES = {
    "problems": "lake/problems/99*/_manifest.json",
    "rollouts": "lake/rollouts/4*/_manifest.json",
    "a shard": "lake/scores/5*/part-00000.parquet",
    "scores": "lake/scores/9*/_manifest.json",
    "evaluations": "lake/evaluations/c*/_manifest.json",
    "a report": "lake/evaluations/3*/_report.json",
    "checkpoints": "lake/checkpoints/1*/_manifest.json",
    "what an update did": "lake/checkpoints/1*/rows.parquet",
    "settings": f"runs/{MADE}/{RUN}",
    "the journal": f"runs/{MADE}/{EVENTS}",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("damage") / "home"
    make_home(root)
    return root


@pytest.fixture(scope="module")
def before(home: Path) -> dict[str, Said]:
    found = heard(home, VERBS)
    assert {each.code for each in found.values()} == {0}
    return found


def remove(path: Path, _: random.Random) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [flip, remove])
@pytest.mark.parametrize("pattern", FILES.values(), ids=list(FILES))
def test_a_verb_says_which_file_is_damaged_or_gone_and_leaves_it_out_if_asked(
    home: Path,
    before: dict[str, Said],
    tmp_path: Path,
    pattern: str,
    harm: Callable[[Path, random.Random], object],
) -> None:
    copy = copied(home, tmp_path / "home")
    (path,) = copy.glob(pattern)
    harm(path, random.Random(pattern))
    named = names_of(path.relative_to(copy))
    now = heard(copy, VERBS)
    assert {verb: fault for verb in VERBS if (fault := wrong(before[verb], now[verb], named))} == {}
    failed = [verb for verb in ("sql", "show") if now[verb].code]
    assert failed, "no verb reads the file"
    for verb in failed:
        rest = said(copy, (*VERBS[verb], "--partial"))
        assert rest.code == 0
        assert "left out: " in rest.aside
        assert any(name in rest.aside for name in named)


def test_a_bit_anywhere_is_found_by_every_verb(home: Path, tmp_path: Path) -> None:
    assert list(flips(home, tmp_path, FLIPS, QUICK)) == []
    assert list(flips(home, tmp_path, FLIPS_OF_REPORTS, REPORT)) == []


def test_a_query_reads_the_tables_that_it_names_alone(home: Path, tmp_path: Path) -> None:
    copy = copied(home, tmp_path / "home")
    (path,) = copy.glob(FILES["scores"])
    path.unlink()
    count = said(copy, ("sql", "select count(*) as n from rollouts", "--json"))
    assert (count.code, count.answer) == (0, '{"columns": ["n"], "rows": [[24]]}\n')
    assert "scores/9" in said(copy, ("sql", "select count(*) from scores")).aside


def test_what_was_begun_and_not_finished_is_no_damage_and_what_a_run_finished_is_missed(
    home: Path, tmp_path: Path
) -> None:
    copy = copied(home, tmp_path / "home")
    store = Store(Home(copy).lake)
    journal = Journal(copy / "runs" / OTHER)
    begun = Ref("scores", "e" * 32)
    label = {"stage": "score", "round": 3, "purpose": "train", "output": str(begun)}
    journal.run_started({"run": OTHER})
    attempt = journal.stage_started(**label, config={}, inputs={})
    store.writer(begun)
    store.writer(Ref("scores", "f" * 32))
    scores = ("sql", "select count(*) from scores", "--json")
    assert said(copy, scores) == said(home, scores)
    journal.stage_finished(attempt, status="finished", seconds=1.0)
    assert said(copy, scores).aside == (
        f"gradus: {begun} is missing: run {OTHER} made, reused or read it; `gradus train {OTHER}` computes it again; "
        "--partial leaves it out\n"
    )
    assert said(copy, (*scores, "--partial")).answer == said(home, scores).answer


def test_an_artifact_that_no_run_has_ends_a_query_over_the_lake_if_it_is_damaged(home: Path, tmp_path: Path) -> None:
    copy = copied(home, tmp_path / "home")
    folder = copy / "lake" / "scores" / ("d" * 32)
    folder.mkdir()
    (folder / "_manifest.json").write_text("{}")
    scores = ("sql", "select count(*) from scores", "--json")
    assert "scores/dddd" in said(copy, scores).aside
    assert said(copy, (*scores, "--partial")).answer == said(home, scores).answer
    assert said(copy, (*scores, "--run", MADE)).code == 0
