"""Odd files, settings, names and variables: each is taken, or refused with a sentence that any person can read."""

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradus.data.errors import GradusError
from gradus.data.lake.schema import DIFFICULTY, PLAN, PROBLEMS, ROLLOUTS, SCORES
from gradus.data.sources.formats import FORMATS
from gradus.data.sources.problems import problems_table
from gradus.data.sources.reading import Refused, read_rows
from gradus.data.sources.tabular import read_user_table
from gradus.flows.cli import main as cli
from gradus.flows.library import calling
from gradus.flows.library.texts import configured, mapping, parse_filter, parse_reward
from gradus.flows.loop.reruns import plan_rerun
from gradus.flows.recipe.checking import check_recipe, check_settings
from gradus.flows.recipe.config import Recipe
from gradus.flows.recipe.reading import RECIPES, load_recipe, parse_recipe
from gradus.flows.recipe.setting_faults import settings_of
from gradus.tasks.config.settings import Home, check_environment
from gradus.tasks.preflight.checks import check_name
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runs.listing import list_runs, read_run
from gradus.tasks.stages.registry import STAGES

SCALE = int(os.environ.get("GRADUS_FUZZ", "1"))
"""How many times as many cases as in a run of all tests."""
JARGON = re.compile(
    r"\b\w+(?:Error|Exception|Warning)\b|Traceback|pydantic|validation error|Input should|\[type=|errno|codec|<class |"
    r" object at 0x|\bNone\b|NoneType|\bdict\b|\btuple\b"
)


def cases(num: int) -> Any:
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(max_examples=num * SCALE, suppress_health_check=checks)


def refusal(act: Callable[[], object]) -> GradusError | None:
    """What an act is refused with, a sentence; None if it is not. Any other error fails the test."""
    try:
        act()
    except GradusError as error:
        found = error
    else:
        return None
    said = str(found)
    assert said.strip(), "a refusal without a word"
    assert not JARGON.search(said), said
    assert found.exit_code in (1, 2)
    return found


numbers = st.one_of(
    st.sampled_from(["nan", "inf", "-inf", "-1", "0", "1e400", "1e-400", "9" * 30, "-0.0", "true", "1_000", "0x10"]),
    st.floats().map(str),
    st.integers().map(str),
)
texts = st.one_of(
    st.sampled_from(["", " ", ".", "..", "/", "a/b", "a" * 300, "é" * 300, "\x1b[31m", "a\0b", "\u202e", "-x", "%s{}"]),
    st.text(max_size=12).filter(lambda text: not JARGON.search(text)),
)
compounds = st.sampled_from(
    ["[]", "[0]", "[-1]", "[nan]", "{}", "{a=1}", "[{}]", "[[[1]]]", "[" * 2000, "2020-01-01", '[{name="x"}]', '"x"']
)
values = st.one_of(numbers, texts, compounds)
known_keys = st.sampled_from(sorted(settings_of(Recipe)))


@st.composite
def misspelt(draw: st.DrawFn) -> str:
    """A key of a recipe with a letter, a part or an index changed."""
    key = draw(known_keys)
    at = draw(st.integers(0, len(key)))
    return draw(
        st.sampled_from(
            [key[:at] + "x" + key[at:], key[:at] + key[at + 1 :], f"{key}.x", f"{key}.7", f"{key}.²", f".{key}"]
        )
    )


keys = st.one_of(known_keys, misspelt(), st.sampled_from(["curate.filters.0.name", "curate.filters.0.low"]))
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@cases(60)
@given(st.lists(st.tuples(keys, values), min_size=1, max_size=3))
def test_a_recipe_with_odd_settings(place: Path, assignments: list[tuple[str, str]]) -> None:
    def act() -> None:
        recipe = load_recipe("demo", [f"{key}={value}" for key, value in assignments])
        check_recipe(recipe, place / "lake")
        stored = json.dumps(recipe.model_dump(mode="json"), allow_nan=False)
        assert parse_recipe(json.loads(stored), "stored") == recipe

    refusal(act)


@cases(30)
@given(known_keys, st.sampled_from(["nan", "inf", "-inf"]))
def test_no_setting_is_infinite_or_no_number(place: Path, key: str, value: str) -> None:
    found = refusal(lambda: check_recipe(load_recipe("demo", [f"{key}={value}"]), place / "lake"))
    assert found is not None
    assert found.exit_code == 2


DEMO = (RECIPES / "demo.toml").read_bytes()


@cases(60)
@given(st.data())
def test_a_damaged_recipe(place: Path, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(DEMO)))
    wrong = data.draw(st.sampled_from([b"", b"\xff", b"\0", b"[[[", b"x", b"\n", b"=", b"nan", b"'", b"\xef\xbb\xbf"]))
    file = place / "damaged.toml"
    file.write_bytes(DEMO[:at] + wrong + DEMO[at + data.draw(st.integers(0, 40)) :])
    refusal(lambda: check_recipe(load_recipe(str(file)), place / "lake"))


@cases(60)
@given(st.sampled_from(sorted(STAGES)), st.data(), values)
def test_settings_of_a_stage(stage: str, data: st.DataObject, value: str) -> None:
    model = STAGES[stage].settings
    key = data.draw(st.sampled_from(sorted(settings_of(model))))

    def act() -> None:
        config = configured(
            model, [f"{key}={value}"], {"wave": "refill"} if stage == "wave" and not key.startswith("wave") else None
        )
        stored = json.dumps(config.model_dump(mode="json"), allow_nan=False)
        assert model.model_validate_json(stored) == config

    refusal(act)


@cases(40)
@given(st.one_of(texts, st.sampled_from(["pass_rate:", "length:", "zero_variance:"])), texts, values)
def test_options_that_are_parsed(name: str, key: str, value: str) -> None:
    refusal(lambda: parse_filter(f"{name}{key}={value}"))
    refusal(lambda: parse_reward(f"{name}={value}"))
    refusal(lambda: mapping([f"{key}={value}"]))
    refusal(lambda: check_name(value, "the name"))


@cases(30)
@given(st.sampled_from(["GRADUS_SERVER_IDLE_S", "GRADUS_STAGE_LIMIT_S", "GRADUS_REPORT", "GRADUS_HOME"]), values)
def test_variables(name: str, value: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, value.replace("\0", ""))
        refusal(check_environment)
        refusal(Home.from_environment)


FIELDS = ("question", "messages", "answer", "solution", "domain", "problem_id", "extra", "problem", "metadata")
HINTED = ("reward_model", "rollout_reward_list", "solution_breakdown_parts", "planning_skeleton_parts", "id")
rows = st.dictionaries(st.sampled_from([*FIELDS, *HINTED]), jsons, max_size=6)
good = st.fixed_dictionaries({"question": st.text(min_size=1), "answer": st.text(min_size=1)})
surrogates = st.sampled_from(
    [r'{"question": "\ud800", "answer": "1"}', r'{"\udc00": 1}', "[", "1", "", "\ufeff{}", "NaN"]
)
lines = st.lists(st.one_of(rows.map(json.dumps), good.map(json.dumps), surrogates), min_size=1, max_size=5)


@cases(80)
@given(lines, st.sampled_from(["auto", *sorted(FORMATS)]), st.booleans())
def test_rows_of_a_problem_file(place: Path, written: list[str], format_name: str, strict: bool) -> None:
    file = place / "problems.jsonl"
    file.write_text("\n".join(written) + "\n", encoding="utf-8")
    refused = Refused()

    def act() -> None:
        options: dict[str, Any] = {"name": "t", "format_name": format_name, "columns": {}, "strict": strict}
        table = problems_table(read_rows(file, refused), refused, **options)
        assert table.num_rows + sum(refused.reasons.values()) == sum(bool(line.strip()) for line in written)
        table.validate(full=True)

    refusal(act)
    assert not any(JARGON.search(reason) for reason in refused.reasons)


@cases(60)
@given(st.sampled_from([DIFFICULTY, PLAN, PROBLEMS, ROLLOUTS, SCORES]), st.data())
def test_rows_of_a_users_table(place: Path, schema: Any, data: st.DataObject) -> None:
    columns = st.sampled_from([*(column.name for column in schema.columns), "other"])
    found = data.draw(st.lists(st.dictionaries(columns, jsons, max_size=8), min_size=1, max_size=3))
    whole = [{**dict.fromkeys(schema.required, "x"), **row} for row in found]
    file = place / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in data.draw(st.sampled_from([found, whole]))))
    refusal(lambda: read_user_table(file, schema, {}).validate(full=True))


@cases(30)
@given(st.binary(max_size=200))
def test_a_file_of_any_bytes(place: Path, content: bytes) -> None:
    for name in ("any.jsonl", "any.parquet", "any.txt"):
        (place / name).write_bytes(content)
        refusal(lambda path=place / name: read_user_table(path, ROLLOUTS, {}))


NUMBERED = count()
EVENT = {"time": 1.0, "stage": "score", "round": 1, "purpose": "train", "output": "scores/00aa11bb", "attempt": "a"}
events = st.builds(
    lambda name, odd, left: {k: v for k, v in {**EVENT, "event": name, **odd}.items() if k != left},
    st.sampled_from(["run_started", "stage_started", "stage_finished", "stage_reused", "run_finished", "x"]),
    st.dictionaries(st.sampled_from(["seconds", "status", "error", *EVENT]), jsons, max_size=2),
    st.sampled_from(["", "event", *EVENT]),
)
bodies = st.one_of(
    st.just(b'{"verb": "score", "seed": 1}'), st.binary(max_size=40), jsons.map(json.dumps).map(str.encode)
)


@cases(60)
@given(bodies, st.lists(events | jsons, max_size=4))
def test_a_run_with_odd_files(place: Path, body: bytes, told: list[Any]) -> None:
    runs = place / f"runs-{next(NUMBERED)}"
    folder = runs / "odd"
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(body)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in told))
    refusal(lambda: list_runs(runs, place / "lake"))
    refusal(lambda: read_run(runs, "odd", place / "lake"))
    refusal(lambda: plan_rerun(runs, "odd", "score", []))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one of a round, which had every stage."""
    runs = tmp_path_factory.mktemp("runs")
    journal = Journal(runs / "mine")
    body = {"verb": "train", "seed": 1, "recipe": load_recipe("demo", rounds=1).model_dump(mode="json")}
    (runs / "mine" / "run.json").write_text(json.dumps(body))
    for stage in STAGES:
        journal.stage_reused(stage=stage, round=1, purpose="train", output="scores/00aa11bb")
    return runs


@cases(60)
@given(st.sampled_from(sorted(STAGES)), st.data(), values)
def test_a_rerun_with_odd_settings(runs: Path, stage: str, data: st.DataObject, value: str) -> None:
    known = sorted(settings_of(STAGES[stage].settings))
    key = data.draw(st.one_of(st.sampled_from(known), keys))

    def act() -> None:
        plan = plan_rerun(runs, "mine", stage, [f"{key}={value}"], data.draw(st.sampled_from([None, 1, 2])))
        check_settings(plan.recipe, runs)
        json.dumps(plan.recipe.model_dump(mode="json"), allow_nan=False)

    refusal(act)


class _StartedError(BaseException):
    """The command would now start a server."""


@pytest.fixture
def program(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The program, stopped where it would start a server: its exit code, if it has one, and what it said."""
    (place / "problems.jsonl").write_text('{"question": "1+1=", "answer": "2"}\n')
    monkeypatch.setenv("GRADUS_HOME", str(place / "home"))
    monkeypatch.chdir(place)

    @contextlib.contextmanager
    def begin() -> Iterator[None]:
        raise _StartedError
        yield

    monkeypatch.setattr(calling, "api", begin)

    def run(*words: str) -> tuple[int | None, str]:
        capsys.readouterr()
        code: Any = None
        try:
            cli.main(list(words))
            code = 0
        except SystemExit as end:
            code = end.code
        except _StartedError:
            code = None
        out, err = capsys.readouterr()
        assert code in (0, 1, 2, None)
        assert (code == 0) == (not err) or code is None, err
        return code, err or out

    return run


P = ("--problems", "problems.jsonl")
VERBS = (
    ("ingest", "{}"),
    ("ingest", "problems.jsonl", "--map", "{}"),
    ("ingest", "problems.jsonl", "--set", "{}"),
    ("hint", "--problems", "{}"),
    ("curate", *P, "--filter", "{}"),
    ("curate", *P, "--difficulty", "{}"),
    ("rollout", *P, "--plan", "{}"),
    ("rollout", *P, "--plan", "problems.jsonl", "--engine", "{}"),
    ("score", "--rollouts", "{}"),
    ("score", "--rollouts", "problems.jsonl", "--reward", "{}"),
    ("update", "--rollouts", "{}", "--scores", "{}"),
    ("evaluate", *P, "--policy", "{}"),
    ("evaluate", *P, "--seed", "{}"),
    ("evaluate", *P, "--set", "ks={}"),
    ("profile", *P, "--temperature", "{}"),
    ("warmstart", *P, "--set", "lr={}"),
    ("train", "{}"),
    ("train", "demo", "--run", "{}"),
    ("train", "demo", "--set", "{}"),
    ("rerun", "{}", "score"),
    ("show", "{}"),
    ("sql", "select 1", "--run", "{}"),
    ("surface", "--policy", "{}"),
    ("plan", *P, "--tokens", "{}"),
    ("plan", "--problems", "{}", "--tokens", "9"),
    ("sync", "{}"),
    ("{}",),
)


@cases(120)
@given(st.sampled_from(VERBS), values)
def test_words_of_a_command(program: Any, verb: tuple[str, ...], value: str) -> None:
    code, said = program(*(word.replace("{}", value) for word in verb))
    shown = said.replace("Input should", "")  # typer's own words for an option out of its range
    assert code is None or not JARGON.search(shown), shown


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb)[:40])
def test_a_word_that_is_no_text(program: Any, verb: tuple[str, ...]) -> None:
    code, said = program(*(word.replace("{}", "a\udcff") for word in verb))
    assert code == 2
    assert "is not valid UTF-8" in said


def test_the_oracle_sees_what_must_not_be_said() -> None:
    for said in ("KeyError: 'n'", "Traceback (most recent call last)", "Input should be a valid number"):
        with pytest.raises(AssertionError):
            refusal(lambda text=said: _raise(GradusError(text)))
    with pytest.raises(ZeroDivisionError):
        refusal(lambda: math.floor(1 / 0))


def _raise(error: Exception) -> None:
    raise error
