"""Beginnings of names, what a shell offers for them, and the version: the program in this process."""

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref, Store
from gradus.data.nearest import unique
from gradus.flows.cli.main import COMPLETING, app, main
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.preflight.checks import check_inputs
from gradus.tasks.runs.journal import Journal

RUNS = ("demo-1a2b3c4d", "demo-1a2c5e6f", "tiny", "tiny-78df032f")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with four runs and three tables of problems, whose names begin alike in two."""
    root = tmp_path / "home"
    for name in RUNS:
        Journal(root / "runs" / name).run_started({"run": name})
        (root / "runs" / name / "run.json").write_text('{"verb": "ingest", "seed": 0}')
    monkeypatch.setenv("GRADUS_HOME", str(root))
    monkeypatch.chdir(tmp_path)
    store = Store(root / "lake")
    for digest in ("abcd" * 8, "abce" * 8, "beef" * 8):
        writer = store.writer(Ref("problems", digest))
        writer.write_table(pa.table({"problem_id": [digest], "question": ["1 + 1 ="], "answer": ["2"]}))
        writer.commit()
    return root


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int | str | None, str, str]:
    """Exit code, stdout and stderr of the program."""
    with pytest.raises(SystemExit) as end:
        main(list(words))
    out, err = capsys.readouterr()
    return end.value.code, out, err


@pytest.mark.parametrize("word", ["demo-1a2b", "demo-1a2b3c4d"])
def test_the_beginning_of_a_run_is_enough_wherever_a_run_is_named(
    home: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    code, out, _ = said(capsys, "show", word, "--json")
    assert (code, json.loads(out)["run"]) == (0, "demo-1a2b3c4d")
    code, out, _ = said(capsys, "sql", "select run from runs", "--run", word, "--json")
    assert (code, json.loads(out)["rows"]) == (0, [["demo-1a2b3c4d"]])
    code, _, err = said(capsys, "rerun", word, "score")
    assert (code, "run demo-1a2b3c4d is a single `ingest`" in err) == (2, True)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("demo", "several runs begin with demo: demo-1a2b3c4d, demo-1a2c5e6f; write more of the name"),
        ("tiny-78dF032f", "there is no run tiny-78dF032f; did you mean tiny-78df032f?"),
        ("nonesuch", "there is no run nonesuch; list them with `gradus runs`"),
        ("", "the name of the run is empty"),
    ],
)
@pytest.mark.parametrize("command", [("show",), ("sync",), ("rerun",), ("sql", "select 1", "--run")])
def test_an_ambiguous_beginning_is_refused_with_the_candidates_and_an_unknown_one_with_the_nearest(
    home: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...], word: str, message: str
) -> None:
    code, _, err = said(capsys, *command, word, *(["score"] if command == ("rerun",) else []))
    assert code == 2
    assert message in err


def test_a_name_that_is_whole_is_not_the_beginning_of_another(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(said(capsys, "show", "tiny", "--json")[1])["run"] == "tiny"


def test_the_beginning_of_an_artifact_is_enough_and_is_looked_at_before_anything_starts(home: Path) -> None:
    store = Store(home / "lake")
    check_inputs(home / "lake", problems="problems/beef")
    for word in ("problems/beef", f"problems/{'beef' * 8}"):
        assert resolve_artifact(store, word, "problems") == Ref("problems", "beef" * 8)
    for wrong, message in (
        ("problems/abc", "neither a file nor an artifact"),  # too short to be the beginning of a name
        ("problems/0000", r"there is no artifact problems/0000; list what"),
        (f"problems/{'abcd' * 7}abce", f"did you mean problems/{'abcd' * 8}"),
        ("scores/abcd", "is a scores artifact"),
    ):
        with pytest.raises(UsageError, match=message):
            check_inputs(home / "lake", problems=wrong)
        with pytest.raises(UsageError, match=message):
            resolve_artifact(store, wrong, "problems")
    (home / "lake" / "problems" / ("abcd" * 7 + "0000")).mkdir()
    with pytest.raises(UsageError, match=f"several artifacts begin with problems/abcd: problems/{'abcd' * 7}0000, "):
        resolve_artifact(store, "problems/abcd", "problems")


@settings(max_examples=200, derandomize=True)
@given(names=st.lists(st.text("ab-", min_size=1, max_size=6), unique=True), word=st.text("ab-", max_size=6))
def test_a_beginning_stands_for_a_name_if_it_is_it_or_if_only_one_begins_so(names: list[str], word: str) -> None:
    begin = [name for name in names if name.startswith(word)]
    wanted = word if word in names else begin[0] if word and len(begin) == 1 else None
    if wanted is not None:
        assert unique(word, names, "run", "look") == wanted
        return
    with pytest.raises(UsageError, match="several runs begin" if word and begin else "there is no run"):
        unique(word, names, "run", "look")


def offered(*words: str, shell: str = "bash") -> list[str]:
    env = {COMPLETING: f"complete_{shell}", "COMP_WORDS": " ".join(("gradus", *words)), "COMP_CWORD": str(len(words))}
    return CliRunner().invoke(app, [], env=env, prog_name="gradus").stdout.split()


def test_a_shell_offers_runs_recipes_stages_and_artifacts(home: Path) -> None:
    Path("mine.toml").write_text("")
    assert offered("show", "demo") == ["demo-1a2b3c4d", "demo-1a2c5e6f"]
    assert offered("rerun", "tiny", "up") == ["update"]
    assert offered("train", "d") == ["demo"]
    assert offered("train", "mi") == ["mine.toml"]
    assert offered("hint", "--problems", "problems/b") == [f"problems/{'beef' * 8}"]
    assert offered("hint", "--problems", "mi") == []  # the shell offers files
    assert offered("sql", "select", "--run", "tiny-") == ["tiny-78df032f"]
    assert "methods" in offered("me")


def test_the_tab_key_and_the_version_make_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "none"))
    assert said(capsys, "--version") == (0, f"gradus {version('gradus')}\n", "")
    variables: dict[str, Any] = {COMPLETING: "complete_bash", "COMP_WORDS": "gradus show d", "COMP_CWORD": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert said(capsys)[0] == 0
    assert list(tmp_path.iterdir()) == []
