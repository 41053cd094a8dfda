"""The page itself: it parses, loads nothing, runs nothing, and what a policy wrote is text in it."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import pytest

from gradus.data.errors import CorruptArtifactError, UsageError
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.report.at_end import write_at_end
from gradus.tasks.inspect.report.writing import coloured, write_report
from gradus.tasks.tracking.facts import AGREEMENT, REPORT_PAGE, SAMPLE_TABLE
from tests.tasks.made_run import QUESTIONS, RUN, MadeRun

VOID = {"meta", "br", "link", "img", "input", "hr"}
HOSTILE = {
    "script": "</pre></style><script>alert(1)</script>",
    "style": "<style>body{display:none}</style><link rel=stylesheet href=http://127.0.0.1:1/x.css>",
    "attribute": "\"' onmouseover=alert(1) x='",
    "picture": "![](http://127.0.0.1:1/x) <img src=http://127.0.0.1:1/y onerror=alert(1)>",
    "bidi": "\u202eabc\u2066def",
    "ansi": "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "template": "{{ 7 * 7 }} {% raw %} ${x} $\\frac$",
    "surrogate": "\\ud800 \u2028 \x00",
    "long": "megabyte " * 120_000,
}


class Parsed(HTMLParser):
    """Elements, their attributes, and the text outside of styles; every element must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def written(home: Home, folder: Path, run: str = RUN) -> Parsed:
    (path,) = write_report(home, run, folder / "page.html", pytest.fail)
    return Parsed(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    """A run whose groups, hints excepted, hold nothing but hostile texts."""
    places = [(at, "train", problem, sample) for at in (1, 2) for problem in QUESTIONS for sample in (0, 1)]
    places += [(at, "eval", problem, 0) for at in (0, 2) for problem in ("d", "e")]
    names = list(HOSTILE)
    texts = {place: HOSTILE[names[number % len(names)]] for number, place in enumerate(places)}
    folder = tmp_path_factory.mktemp("hostile")
    MadeRun(Home(folder), texts).whole()
    return written(Home(folder), folder)


def test_what_a_policy_wrote_stays_text(hostile: Parsed) -> None:
    assert not {"script", "link", "iframe", "object", "embed", "form", "base"} & set(hostile.tags)
    assert hostile.tags.count("style") == 1
    assert not [name for _, name, _ in hostile.attributes if name.startswith("on")]
    text = "".join(hostile.text)
    assert "</pre></style><script>alert(1)</script>" in text
    assert "{{ 7 * 7 }}" in text
    assert "⟦U+202E⟧abc⟦U+2066⟧def" in text
    assert "␛[2J" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028]", text)


def test_a_megabyte_is_cut_with_a_note(hostile: Parsed) -> None:
    text = "".join(hostile.text)
    assert "… (1,076,000 more characters)" in text
    assert len(text) < 400_000


def test_the_page_loads_nothing_and_runs_nothing(hostile: Parsed) -> None:
    loading = [
        value for _, name, value in hostile.attributes if name in ("src", "href", "xlink:href", "action", "data")
    ]
    assert loading
    assert [value for value in loading if not value.startswith(("#", "data:image/png;base64,"))] == []
    assert "url(" not in "".join(v for _, name, v in hostile.attributes if name == "style" and "url(#" not in v)
    policy = next(value for tag, name, value in hostile.attributes if (tag, name) == ("meta", "content"))
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert len(set(hostile.ids)) == len(hostile.ids)
    anchors = {value[1:] for tag, name, value in hostile.attributes if (tag, name) == ("a", "href")}
    assert anchors <= set(hostile.ids)


def test_the_callers_drawing_changes_no_report_and_is_left_as_it_was(made: Home, tmp_path: Path) -> None:
    plain = [path.read_bytes() for path in write_report(made, RUN, tmp_path / "a.html", pytest.fail, pictures=tmp_path)]
    theirs = {"font.size": 31.0, "svg.fonttype": "path", "figure.titlesize": 40.0, "figure.dpi": 31.0}
    with mpl.rc_context(theirs):
        files = write_report(made, RUN, tmp_path / "a.html", pytest.fail, pictures=tmp_path)
        assert {name: mpl.rcParams[name] for name in theirs} == theirs
    assert [path.read_bytes() for path in files] == plain


def test_the_numbers_are_on_the_page_with_pictures_as_png_and_the_same_each_time(made: Home, tmp_path: Path) -> None:
    page, *pictures = write_report(made, RUN, tmp_path / "r.html", pytest.fail, pictures=tmp_path / "png")
    text = re.sub(r"\s+", " ", " ".join(Parsed(page.read_text(encoding="utf-8")).text))
    assert "0.25 [0.125, 0.375]" in text  # pass@1
    assert "0.167 [0, 0.5]" in text  # reward of round 1
    assert "Newly solved: 1 (no rollout right in round 0, one or more in round 2). Newly lost: 1." in text
    assert "rescued by hint level 2" in text
    assert ": finished." in text
    assert {path.stem for path in pictures} >= {"reward", "pass-at-k-sums", "difficulty", "hints", "costs-by-stage"}
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    (again,) = write_report(made, RUN, tmp_path / "again.html", pytest.fail)
    assert again.read_bytes() == page.read_bytes()


def test_tokens_are_coloured_by_their_probability_and_stay_text() -> None:
    pieces = [("<b>", math.log(0.95)), ("x&", math.log(0.6)), ("y", math.log(0.01)), ("z", None)]
    assert coloured({"pieces": pieces, "completion": "<b>x&yz"}) == (
        '&lt;b&gt;<span class="u1" title="-0.51">x&amp;</span><span class="u4" title="-4.61">y</span>'
        '<span class="ins" title="inserted">z</span>'
    )
    long = coloured({"pieces": [("a" * 3999, 0.0), ("<>", 0.0), ("b", -9.0)], "completion": "a" * 3999 + "<>b"})
    assert long == "a" * 3999 + "&lt;… (2 more characters)"


def test_a_run_that_has_done_nothing_yet_is_a_page_that_says_so(tmp_path: Path) -> None:
    MadeRun(Home(tmp_path))
    text = " ".join(written(Home(tmp_path), tmp_path).text)
    assert "This run has no rollouts." in text
    assert "killed" in text


def test_a_run_without_evaluations_has_a_page_without_them(tmp_path: Path) -> None:
    run = MadeRun(Home(tmp_path))
    run.batch(run.problems("9", QUESTIONS), 1, "train", {"a": (1.0, 0.0)})
    run.finish()
    page = written(Home(tmp_path), tmp_path)
    assert "curves" in page.ids
    assert "solved-and-lost" not in page.ids


def test_what_cannot_be_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run nonesuch"):
        write_report(Home(tmp_path), "nonesuch", tmp_path / "r.html", print)
    MadeRun(Home(tmp_path))
    with pytest.raises(UsageError, match="there is no folder"):
        write_report(Home(tmp_path), RUN, tmp_path / "no" / "r.html", print)


def test_at_the_end_of_a_training_a_table_of_samples_is_written_as_the_tracker_writes_tables(made: Home) -> None:
    folder = made.runs / RUN
    assert write_at_end(made.root, folder, "failed", "the disk is full <b>") == ""
    text = " ".join(Parsed((folder / REPORT_PAGE).read_text(encoding="utf-8")).text)
    assert "failed: the disk is full <b>." in text  # before the journal says so
    table = json.loads((folder / SAMPLE_TABLE).read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    evaluated = [row for row in rows if row["purpose"] == "eval"]
    assert [(row["problem_id"], row["round"], row["place"], row["completion"], row["reward"]) for row in evaluated] == [
        ("d", 2, "best", "d0 of eval 2", 1.0),
        ("d", 2, "worst", "d1 of eval 2", 0.0),
        ("e", 2, "best", "e0 of eval 2", 0.0),
        ("e", 2, "worst", "e1 of eval 2", 0.0),
    ]
    hinted = [row for row in rows if row["hint"]]
    assert [(row["completion"], row["advantage"], row["hint"]) for row in hinted] == [
        ("b0 of hint2 1", 0.5, "think"),
        ("b1 of hint2 1", -0.5, "think"),
    ]


def test_a_report_that_fails_at_the_end_is_a_sentence_and_leaves_no_older_one(tmp_path: Path) -> None:
    run = MadeRun(Home(tmp_path)).whole()
    (run.folder / REPORT_PAGE).write_text("an earlier one")
    shard = next(tmp_path.glob("lake/rollouts/*/part-00000.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")
    said = write_at_end(tmp_path, run.folder, "finished", "")
    assert said.startswith("the report was not written: ")
    assert "does not have the bytes that its manifest names" in said
    assert said.endswith(f"try `gradus report {RUN}`")
    assert not (run.folder / REPORT_PAGE).exists()


def test_flips_of_an_agreement_stand_side_by_side(tmp_path: Path) -> None:
    made = MadeRun(Home(tmp_path))
    cell = {"by": "round", "value": "2", "rows": 4, "both_right": 1, "only_first": 2, "only_second": 0}
    flip = {"rollout_id": "r:1", "problem_id": "p", "run": "demo", "round": 2, "right": "own"}
    pair = {
        "first": "own",
        "second": "mine.py:strict",
        "num_unjudged": 0,
        "cells": [{**cell, "both_wrong": 1, "agreement": 0.5, "kappa": None}],
        "rounds": [],
        "divergences": [{"run": "demo", "round": 2, "tokens": 9, "since": None}],
        "flips": [{**flip, "completion": HOSTILE["script"], "first": "34", "second": None}],
        "num_flips": 2,
    }
    path = made.folder / AGREEMENT
    path.write_text(json.dumps({"run": "agree", "rewards": [], "rollouts": 4, "pairs": [pair]}))
    page = written(Home(tmp_path), tmp_path)
    text = re.sub(r"\s+", " ", " ".join(page.text))
    assert "demo: the first update that differs is that of round 2." in text
    assert "round 2 4 1 2 0 50.0 % -" in text
    assert "They disagree on 2 rollouts. Shown: 1." in text
    assert "own: right, read 34" in text
    assert "mine.py:strict: wrong, read nothing" in text
    assert ("script" in page.tags, HOSTILE["script"] in text) == (False, True)
    path.write_text('{"pairs": [{"first": 3}]}')
    with pytest.raises(CorruptArtifactError, match="is no agreement of rewards"):
        written(Home(tmp_path), tmp_path)
