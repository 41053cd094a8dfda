"""The library in this process: what an import costs, what is refused, and that its types are its functions."""

import ast
import inspect
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gradus
from gradus.flows.console.output import aside
from gradus.flows.library import calling, run_calls, stage_calls
from gradus.flows.library.results import Artifact
from gradus.flows.loop.comparing.budget import Asked
from gradus.tasks.config.settings import Home

ROOT = Path(__file__).parents[3]
STUB = ast.parse((ROOT / "src/gradus/__init__.pyi").read_text()).body


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of signals of a process that is not the program's."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_an_import_imports_nothing_else() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); before = {*sys.modules}; import gradus"
    command = [sys.executable, "-I", "-S", "-c", f"{code}; print(sorted({{*sys.modules}} - before))", ROOT / "src"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['gradus']"


def test_every_name_that_is_declared_is_there_and_no_other() -> None:
    offered = [name for node in STUB if isinstance(node, ast.ImportFrom) for name in node.names if name.asname]
    modules = {name.asname: node.module for node in STUB if isinstance(node, ast.ImportFrom) for name in node.names}
    declared = {name.name: modules[name.name] for name in offered}
    declared |= {each.name: stage_calls.__name__ for each in STUB if isinstance(each, ast.FunctionDef)}
    assert declared == dict(gradus._OFFERED)  # type: ignore[attr-defined]
    for name, module in declared.items():
        found = getattr(gradus, name)
        assert found.__module__ == module
        assert found.__doc__
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        gradus.trian  # type: ignore[attr-defined]  # noqa: B018


def test_a_stage_takes_what_type_checkers_see() -> None:
    keys: dict[str, list[str]] = {"TypedDict": []}
    for node in STUB:
        if isinstance(node, ast.ClassDef):
            own = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]  # type: ignore[union-attr]
            keys[node.name] = [*keys[ast.unparse(node.bases[0])], *own]
        elif isinstance(node, ast.FunctionDef):
            assert node.args.kwarg is not None
            shared = keys[ast.unparse(node.args.kwarg.annotation).removeprefix("Unpack[").rstrip("]")]  # type: ignore[arg-type]
            seen = [*(each.arg for each in (*node.args.args, *node.args.kwonlyargs)), *shared]
            known = inspect.signature(getattr(gradus, node.name)).parameters
            assert sorted(seen) == sorted(known)
            assert len(node.args.args) == sum(each.default is inspect.Parameter.empty for each in known.values())


REFUSED = [
    (lambda: gradus.train("dmo"), "there is no recipe dmo", "did you mean demo?"),
    (
        lambda: gradus.train("demo", set={"update.lrr": 1.0}),
        "there is no setting update.lrr",
        "did you mean update.lr?",
    ),
    (lambda: gradus.score("nowhere.jsonl"), "nowhere.jsonl is neither a file nor an artifact", "give a JSONL or"),
    (lambda: gradus.curate("bundled:train", filters=[{"name": "nonesuch"}]), "there is no filter 'nonesuch'", ""),
    (lambda: gradus.run("nonesuch"), "there is no run nonesuch", "gradus runs"),
    (lambda: gradus.sql("drop table samples"), "only one query that reads", "a single SELECT"),
    (lambda: Artifact("checkpoints/" + "0" * 32, Path("lake"), {}).table(), "is a model, and has no rows", "lake"),
    (lambda: gradus.ingest("https://ann:hunter22secret@example.com/x"), "holds credentials", "leave it out"),
]


@pytest.mark.parametrize(("act", "message", "hint"), REFUSED, ids=[message for _, message, _ in REFUSED])
def test_what_a_user_can_mend_is_an_error_of_ours(act: object, message: str, hint: str, place: Path) -> None:
    with pytest.raises(gradus.GradusError) as caught:
        act()  # type: ignore[operator]
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "hunter22" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert not list(place.glob("home/runs/*"))


def test_no_runs_are_a_table_without_rows() -> None:
    assert (gradus.runs().num_rows, gradus.sql("select run from samples").num_rows) == (0, 0)


def test_a_call_says_nothing_on_the_way_unless_progress_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calling, "api", lambda **_: calling.contextlib.nullcontext())
    with calling.computing():
        aside("training 1 of 4")
    assert capsys.readouterr().err == ""
    with gradus.progress(), calling.computing():
        aside("training 1 of 4")
    assert capsys.readouterr().err == "training 1 of 4\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_handler_that_was_there_when_all_is_closed(
    handlers: None, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(calling, "api", lambda **_: calling.contextlib.nullcontext())
    theirs = lambda *_: seen.append("theirs")  # noqa: E731
    signal.signal(number, theirs)
    root = logging.getLogger()
    before = (dict(os.environ), root.handlers[:], root.level, logging.getLogRecordFactory())

    def interrupted() -> None:
        with calling.computing():
            os.environ["GRADUS_LEFT"] = "1"
            root.addHandler(logging.NullHandler())
            try:
                signal.raise_signal(number)
            finally:
                seen.append("closed")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert seen == ["closed", "theirs"]
    assert signal.getsignal(number) is theirs
    assert (dict(os.environ), root.handlers[:], root.level, logging.getLogRecordFactory()) == before


def test_runs_and_paths_among_the_arguments_of_a_flow_are_texts_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(run_calls, "run_flow", lambda _flow, **each: given.update(each))
    recipes = [gradus.Run("tiny-1", Home(Path("home"))), Path("own.toml"), "demo"]
    run_calls._computed("comparison:compare", Asked(recipes, method=["gspo"], tune_on=Path("own.jsonl")))
    assert given["recipes"] == ["tiny-1", "own.toml", "demo"]
    assert (given["method"], given["tune_on"], given["seeds"]) == (["gspo"], "own.jsonl", 5)
