"""Wrong commands, as people type them, are refused with one sentence before anything is begun or written.

They run in this process; tests/e2e/test_sentences.py and test_quick_verbs.py run one of each kind as programs.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradus.flows.cli import main as cli
from gradus.flows.library import calling
from gradus.tasks.host.home_folder import SECRETIVE

JARGON = re.compile(r"\b\w+(?:Error|Exception)\b|Traceback|pydantic|Input should|\[type=|\[Errno|codec can't")
PROBLEMS = ("--problems", "p.jsonl")
FILTER = ("curate", *PROBLEMS, "--filter")
TRAIN = ("train", "demo")
COMPARE = ("compare", "demo", "qwen2.5-7b-8gpu", "--budget")

COMMANDS = [
    (("ingest", "nowhere.jsonl"), "nowhere.jsonl is neither a file nor a folder"),
    (("ingest", "p.jsonl", "--map", "question"), "is not ours=theirs"),
    (("ingest", "p.jsonl", "--set", "limit=many"), "limit: "),
    (("hint", "--problems", "nowhere.jsonl"), "nowhere.jsonl is neither a file nor an artifact"),
    (("hint", "--problems", "scores/" + "0" * 32), "is a scores artifact"),
    ((*FILTER, "nonesuch:low=1"), "there is no filter 'nonesuch'"),
    ((*FILTER, "pass_rate:low=nan"), "it must be a finite number"),
    (("score", "--rollouts", "p.jsonl", "--map", "x"), "is not ours=theirs"),
    (("evaluate", *PROBLEMS, "--policy", "nowhere"), "nowhere is no folder"),
    (("evaluate", *PROBLEMS, "-n", "2", "--set", "ks=[8]"), "pass@8 needs 8 samples"),
    (("evaluate", *PROBLEMS, "--set", "ks=[0]"), "ks.0: it must be greater than or equal to 1"),
    (("profile", *PROBLEMS, "--temperature", "inf"), "temperature: it must be a finite number"),
    (
        ("profile", *PROBLEMS, "--set", "rollout.server.api_key_variable=AWS_SECRET_ACCESS_KEY"),
        "names the environment variable AWS_SECRET_ACCESS_KEY, which is not released",
    ),
    (("show", "nonesuch"), "there is no run nonesuch"),
    (("train", "nonesuch"), "there is no recipe nonesuch"),
    (("train", "dmo"), "there is no recipe dmo; did you mean demo?"),
    ((*TRAIN, "--run", "../x"), "the name '../x' holds a slash"),
    (("compare", "demo", "dmo", "--budget", "rounds=1"), "there is no recipe dmo; did you mean demo?"),
    (("compare", "demo", "qwen2.5-7b-8gpu"), "demo is a recipe, and there is no budget to train it with"),
    (("compare", "nonesuch", "none"), "there is no run nonesuch"),
    (("compare", "demo", "--partial"), "--partial goes with runs that are there; leave it out, or name runs"),
    ((*COMPARE, "rounds=1", "--partial"), "--partial goes with runs that are there"),
    (("compare", "nonesuch.toml"), "there is no recipe nonesuch.toml; give a .toml file"),
    (("compare", "demo", "--seeds", "1"), "one training is no comparison"),
    ((*COMPARE, "round=1"), "there is no such budget; did you mean rounds?"),
    ((*COMPARE, "rounds=1", "--set", "rounds=2"), "--set rounds=2: all methods have the same budget; write --budget"),
    (("compare", "demo", "--set", "rounds=1", "--set", "rounds=2"), "or --set rounds=N once"),
    ((*COMPARE, "tokens=0"), "it is no whole number from 1 on"),
    ((*COMPARE, "tokens=nan"), "it is no whole number from 1 on"),
    ((*COMPARE, "tokens=many"), "it is no whole number from 1 on"),
    ((*COMPARE, "rounds=1", "--plot", "x.txt"), "--plot x.txt ends in .txt; give .png or .svg or .pdf"),
    ((*COMPARE, "rounds=1", "--plot", "none/x.png"), "there is no folder none"),
    ((*COMPARE, "rounds=1", "--set", "update.lrr=1"), "there is no setting update.lrr"),
    (("compare", "demo", "--budget", "rounds=1", "--seeds", "1"), "one training is no comparison"),
    (("compare", "demo", "demo", "--budget", "rounds=1"), "demo and demo are the same method"),
    (("export", "demo", "--to", "x"), "demo is no checkpoint; give checkpoints/DIGEST"),
    (("export", "scores/" + "0" * 32, "--to", "x"), "is a scores artifact; give checkpoints/DIGEST"),
    (("export", "nonesuch", "--as", "verl", "--to", "x"), "there is no run nonesuch"),
    (("export", "demo", "--as", "vrl", "--to", "x"), "--as vrl: there is no such format; did you mean verl or trl?"),
    (("export", "demo", "--as", "openai", "--to", "x"), "as one to imitate, failures too; give --where correct"),
    (("export", "demo", "--as", "verl", "--to", "x", "--where", " "), "--where is empty"),
    (("export", "checkpoints/" + "0" * 32, "--to", "x", "--where", "correct"), "--where goes with rollouts"),
    (("show", "problems/" + "0" * 32), "there is no artifact problems/000"),
    (("browse", "problems/" + "0" * 32), "prints its first rows"),
    (("export", "demo", "--as", "verl", "--to", "."), "--to . is not empty; give a new folder"),
    (("import", "nowhere", "--from", "verl"), "there is no file or folder nowhere"),
    (("import", "p.jsonl", "--from", "openai"), "--from openai: there is no such format; give one of: verl, trl"),
    (("import", "p.jsonl", "--from", "open-instruct"), "files of open-instruct hold token ids, no texts"),
    (("surface", "--out", "x.txt"), "--out x.txt ends in .txt; give .parquet or .csv"),
    (("surface", "--out", "none/x.csv"), "there is no folder none"),
    (("surface", "--tracker", "x.csv"), "--tracker x.csv ends in .csv; give .parquet"),
    (("plan", "--problems", "nowhere.jsonl", "--tokens", "9"), "nowhere.jsonl is neither a file nor an artifact"),
    (("plan", *PROBLEMS, "--tokens", "9", "--out", "x.csv"), "--out x.csv ends in .csv; give .parquet or .jsonl"),
    (("plan", *PROBLEMS, "--tokens", "inf"), "--tokens inf is no number of tokens"),
    (("agree", "math", "--rollouts", "demo", "--at", "nan"), "--at nan is not a finite number; give one such as 0.5"),
    (("bisect", "demo", "--with", "math", "--at", "inf"), "--at inf is not a finite number"),
    (("import", "p.jsonl", "--from", "table", "--correct-at", "-inf"), "--correct-at -inf is not a finite number"),
    (("ingest", "p.jsonl", "--out", "./p.jsonl"), "--out ./p.jsonl is an input, and would be replaced"),
    (("import", "p.jsonl", "--from", "table", "--out", "p.jsonl"), "--out p.jsonl is an input"),
    (("plan", *PROBLEMS, "--tokens", "9", "--out", "p.jsonl"), "--out p.jsonl is an input"),
    (("browse", "my run"), "`gradus report 'my run'` writes a page"),
    (("bisect", "demo", "--with", "none/labels.jsonl"), "--with none/labels.jsonl: there is no folder none"),
    (("serve", "--notify", "ftp://hooks.example.com"), "--notify needs the address of a webhook"),
    (("serve", "--notify", "http://h:port"), "--notify needs the address of a webhook"),
]
SETTINGS = [
    (f"name={'x' * 300}", "(300 characters)' is longer than 128 bytes"),
    ("update.lr=fast", "update.lr: it must be a number"),
    ("score.rewards.0.weight=inf", "score.rewards.0.weight: it must be a finite number"),
    ("score.rewards.0.weight=x", "score.rewards.0.weight: it must be a number"),
    ("rewards.0.weight=x", "there is no setting rewards; did you mean score.rewards"),
    ("score.item_timeout_s=inf", "score.item_timeout_s: it must be a finite number"),
    ("hint.fractions=[nan]", "hint.fractions.0: it must be a finite number"),
    ("curate.filters.5.name=x", "curate.filters is a list of 1, and has no entry 5"),
    ("curate.filters.x=1", "curate.filters is a list of 1, and has no entry x"),
    ("curate.filters.0.name=pas_rate", "did you mean pass_rate?"),
    ("curate.filters.0.lo=0.1", "there is no setting curate.filters.0.lo (filter pass_rate); did you mean low?"),
    ("escalate=[0]", "escalate.0: it must be greater than or equal to 1"),
    ("evaluate.report.ks=[0]", "evaluate.report.ks.0: it must be greater than or equal to 1"),
    ("rollout.engine=vlm", "rollout.engine: there is no 'vlm'; did you mean vllm?"),
    ("curate.sample.n=1", "curate.sample.n = 1: the advantage grpo compares the completions of a group"),
    ("curate.sample.temperature=0", "curate.sample.temperature = 0: the advantage grpo compares"),
    ("update.advantage=disco", "disco returns coefficients of log-probs, and the loss clip takes advantages"),
    ("update.loss=tbrm", "grpo returns advantages, and the loss tbrm takes rewards as they stand"),
    ("curate.sample.max_tokens=256", "leaves no room for a prompt: the policy bundled has 256"),
]
LINKED = ("--set", "rollout.top_p=0.9", "--set", "update.correction=token_masked")


class _BegunError(BaseException):
    """The command would now start a server."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file of problems, where no command may begin."""

    @contextlib.contextmanager
    def begin() -> Iterator[None]:
        raise _BegunError
        yield

    monkeypatch.setattr(calling, "api", begin)
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *COMMANDS,
        *(((*TRAIN, "--set", assignment), message) for assignment, message in SETTINGS),
        ((*TRAIN, *LINKED), "does not hold for rollouts"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value)[:60],
)
def test_a_wrong_command_is_refused_with_a_sentence_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(list(words))
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.startswith("gradus: ")
    assert len(err.splitlines()) == 1
    assert message in err
    assert not JARGON.search(err), err
    assert {path.name for path in place.rglob("*")} <= {"p.jsonl", "home", "made-here", "made-here.json", *SECRETIVE}


def test_a_dry_run_is_refused_for_what_the_run_would_be(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = [f"--set={key}=p.jsonl" for key in ("problems", "evaluate.problems")]
    needy = "@component('loss', needs=('values',))\ndef needy(rows):\n    ..."
    asks = "@component('filter', needs=('problem.level', 'levle'))\ndef asks(candidates):\n    ..."
    wave = "@component('wave', needs=('plan.budget', 'pass_rate', 'corect'))\ndef again(round, rng):\n    ..."
    (place / "mine.py").write_text(f"from gradus.components import component\n\n\n{needy}\n\n\n{asks}\n\n\n{wave}\n")
    called = "class Judge:\n    def __call__(self, rows):\n        return [1.0 for _ in rows]\n"
    yields = "def listed(rows):\n    yield from rows\n"
    (place / "odd.py").write_text(f"async def judge(rows):\n    return rows\n\n\n{called}\n\n{yields}")
    for setting, code, message in (
        ("ingest.columns.answer=gld", 1, "p has no column gld that could be answer; its columns are question, answer"),
        ("update.loss=mine.py:needy", 2, "loss mine.py:needy needs values, which its kind is not handed"),
        ("curate.filters=['mine.py:asks']", 2, "filter mine.py:asks needs levle, which its kind is not handed"),
        ("waves=['mine.py:again']", 2, "wave mine.py:again needs corect, which its kind is not handed"),
        ("curate.sample.n=1", 2, "a group has only one; set curate.sample.n=8"),
        ("score.rewards.0.name=odd.py:judge", 1, "odd.py line 1: judge is an async function"),
        ("score.rewards.0.name=odd.py:Judge", 1, "odd.py line 5: Judge is a class (write `made = Judge()`"),
        ("score.rewards.0.name=odd.py:listed", 1, "odd.py line 10: listed yields its values"),
    ):
        with pytest.raises(SystemExit) as end:
            cli.main([*TRAIN, "--dry-run", *own, "--set", setting])
        out, err = capsys.readouterr()
        assert (end.value.code, out) == (code, "")
        assert message in err


def test_a_verb_that_there_is_not_is_wrong_usage(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["nonesuch"])
    assert end.value.code == 2
    assert "No such command" in capsys.readouterr().err
