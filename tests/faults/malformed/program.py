"""The program in this process, without Prefect's server, workers or judges: what it says, what it leaves in its lake.

Verbs, their flows and their stages run as they are. A stage that would now sample, judge or train has taken its inputs:
the command counts as accepted there.
"""

import io
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import typer
from transformers.utils.logging import disable_progress_bar

from gradus.data.lake.manifest import FILE_NAME
from gradus.data.lake.store import Ref, Store
from gradus.flows import comparison, environment, exchange, runs, serve, stages, verbs
from gradus.flows.cli import main as cli
from gradus.flows.loop.inputs import as_run, start_of
from gradus.tasks.config.settings import Home
from gradus.tasks.host.processes import Warm
from gradus.tasks.identity.pins import pinned
from gradus.tasks.preflight.checks import SAMPLES
from gradus.tasks.runtime.calls import Call, Outcome, execute, planned
from gradus.tasks.stages.context import read_report
from gradus.tasks.stages.rollout import ray_engine
from gradus.tasks.stages.rollout import stage as rollout_stage
from gradus.tasks.stages.score import stage as score_stage
from gradus.tasks.stages.update import stage as update_stage
from gradus.tasks.stages.update import warmstart, work


def _digest_of_bundled() -> str:
    with tempfile.TemporaryDirectory() as folder:
        return Store(Path(folder)).adopt(SAMPLES / "policy").digest


BUNDLED = _digest_of_bundled()
"""The digest that the bundled policy has in every lake."""

P = ("--problems", "good.jsonl")
INPUTS: Mapping[str, tuple[str, ...]] = {
    "ingest": ("good.jsonl",),
    "hint": P,
    "curate": P,
    "rollout": ("--plan", "plan.jsonl", *P),
    "score": ("--rollouts", "rollouts.jsonl"),
    "update": ("--rollouts", "learnt.jsonl", "--scores", "scores.jsonl"),
    "warmstart": P,
}
"""What makes each verb a right command."""

Content = bytes | Callable[[Path], object]
"""The bytes of a file, or what makes it, or a folder, at a path."""

MAX_CHARS = 500
JARGON = re.compile(
    r"\b\w+(?:Error|Exception|Warning)\b|Traceback|[Pp]ydantic|validation error|Input should|\[type=|[Ee]rrno|codec|"
    r"<class | object at 0x|\bNone\b|NoneType|\bdict\b|\btuple\b|\bstr\b|\bbool\b|"
    r"[Pp]y[Aa]rrow|[Dd]uck[Dd][Bb]|\b[Aa]rrow\b|\b(?:timestamp|duration|date32|date64|time32|time64|decimal128)\b|"
    r"\b(?:u?int(?:8|16|32|64)?|float(?:16|64)?|double|binary)\b|(?:list|struct|map|dictionary)<|"
    r"\btorch\b|[Ss]afetensor(?:Error|_rust)|header too|InvalidHeader|\bpeft\b(?!:)|PeftType|LoraConfig|LlamaConfig|"
    r"AutoModel|AutoConfig|AutoTokenizer|[Tt]ransformers(?!, vllm)|huggingface|\bserde\b|untagged enum|tomllib|typer"
)
"""Names of types and of libraries."""
BOX = re.compile("[─│╭╮╰╯]+")


@dataclass(frozen=True)
class Case:
    """A command with the files, by their names in its folder, and variables that it needs."""

    name: str
    words: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    makes: bool = False
    """Whether an input is right alone, and so kept, before it is found not to fit another one, or not to load."""

    @property
    def verb(self) -> str:
        return self.words[0]


@dataclass(frozen=True)
class Answer:
    """How a command ended; `code` is 0 if it was accepted."""

    code: int
    said: str
    made: frozenset[str]
    """Artifacts that the lake has now."""


class AcceptedError(BaseException):
    """The stage would now do its work."""


def accepted(*_: object, **__: object) -> None:
    raise AcceptedError


class Local:
    """A session whose stages run here."""

    def __init__(self) -> None:
        self.store = Store(Home.from_environment().lake)

    def stage(self, call: Call) -> Outcome:
        job = planned(
            self.store, Call(call.name, pinned(call.config), call.inputs, facts=call.facts), run="here", seed=0
        )
        ref = Ref.parse(job.output)
        reused = self.store.find(ref) is not None
        report = read_report(self.store, ref) if reused else execute(vars(job), Warm(), lambda *_: None)
        return Outcome(call.name, "train", 0, ref, reused, 0.0, report)


@contextmanager
def _session(*_: object, **__: object) -> Generator[Local]:
    yield Local()


@contextmanager
def _no_server(*_: object, **__: object) -> Generator[Callable[[], None]]:
    yield lambda: None


def _called(flow: Any, *args: Any, **kwargs: Any) -> Any:
    """What a flow returns, or raises."""
    found = flow.fn(*args, **kwargs)
    if isinstance(getattr(found, "data", None), Exception):
        raise found.data
    return found


def _train(recipe: Any, *_: object, **__: object) -> None:
    start_of(Local(), as_run(recipe))  # pyright: ignore[reportArgumentType] - all that it needs of a session
    raise AcceptedError


class Program:
    """The program in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"

    def run(self, case: Case) -> Answer:
        """Run a case in the folder and return how it ended; other errors than an exit are raised."""
        for name, content in case.files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            else:
                content(path)
        before = self.artifacts()
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(self.folder)
            patch.setenv("GRADUS_HOME", str(self.home))
            for name, value in case.env.items():
                patch.setenv(name, value)
            code = self._ended(case.words)
        errors = sorted((self.home / "errors").glob("*.txt"))  # the program did not expect this
        if errors:
            raise AssertionError(errors[0].read_text(), [path.unlink() for path in errors])
        for name in case.files:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
        made = self.artifacts()
        if case.makes:
            for name in made - before:
                shutil.rmtree(self.home / "lake" / name)
        return Answer(code, err.getvalue(), made)

    def _ended(self, words: tuple[str, ...]) -> int:
        try:
            cli.main(list(words))
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except AcceptedError:
            return 0
        return 0

    def artifacts(self) -> frozenset[str]:
        """The artifacts of the lake."""
        lake = self.home / "lake"
        return frozenset(str(path.parent.relative_to(lake)) for path in lake.glob(f"*/*/{FILE_NAME}"))


@contextmanager
def program(folder: Path) -> Generator[Program]:
    """The program, stopped where a stage would sample, judge or train."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("GRADUS_", "PREFECT_", "MLFLOW_", "OPENAI_"))]:
            patch.delenv(name)
        disable_progress_bar()
        patch.setattr(cli, "app", typer.main.get_command(cli.app))
        patch.setattr(environment, "prefect_api", _no_server)
        patch.setattr(verbs._VerbFlow, "__call__", _called)
        patch.setattr(runs, "train_flow", _train)
        patch.setattr(serve, "serve_all", accepted)
        patch.setattr(comparison, "compare", accepted)
        for module in (stages, exchange):
            patch.setattr(module, "alone", _session)
        patch.setattr(rollout_stage._Work, "make", accepted)
        patch.setattr(ray_engine, "ray_engine", accepted)
        patch.setattr(update_stage, "launched", accepted)
        patch.setattr(score_stage, "_warm_pools", accepted)
        patch.setattr(update_stage, "_start", accepted)
        patch.setattr(work.Work, "has_signal", lambda *_: True)  # the files have one row
        patch.setattr(warmstart, "finetune", accepted)
        yield Program(folder)
