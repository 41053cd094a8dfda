"""`gradus surface` and `gradus plan` over a lake written by hand, in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from gradus.flows.cli import main as cli
from tests.tasks.inspect.test_surface import NEW, OLD, House

Verb = Callable[..., tuple[int, str, str]]


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Verb:
    """Return exit code, stdout and stderr of a command in a home of its own."""
    monkeypatch.setenv("GRADUS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(list(words))
        assert isinstance(end.value.code, int)
        return end.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def problems(verb: Verb, tmp_path: Path) -> str:
    """Ten problems, of which the policy NEW solved half, and OLD one; a hint of the second half of them."""
    house, ids = House(tmp_path / "home"), [f"p{at}" for at in range(10)]
    rows = [{"problem_id": each, "question": "?", "solution": "a\nb\n"} for each in ids]
    hints = [{"problem_id": each, "strategy": "prefix", "level": 1, "fraction": 0.5, "text": "a\n"} for each in ids[5:]]
    house.artifact("hints/" + "2" * 32, hints)
    own = [{"problem_id": each} for each in ids for _ in range(4)]
    house.sampled("3", own, [at < 20 for at in range(40)])
    helped = [{"problem_id": each, "hint_level": 1, "hint_text": "a\n"} for each in ids[5:] for _ in range(4)]
    house.sampled("4", helped, [at % 2 == 0 for at in range(20)])
    house.sampled("5", [{"problem_id": "p0", "policy": OLD}, {"problem_id": "p9", "policy": OLD}], [True, False])
    return house.artifact("problems/" + "1" * 32, rows)


def test_the_picture_is_shown_and_printed_as_json(verb: Verb, problems: str) -> None:
    code, out, err = verb("surface", "--against", OLD[:4])
    assert (code, err) == (0, "")
    assert f"policy {NEW} at temperature 1: 30 of 60 rollouts right" in out
    assert "10 problems; the model is of 62 judged rollouts by 2 policies" in out
    assert "25%    50%    75%  against" in out
    code, out, _ = verb("surface", "--policy", "checkpoints/" + NEW, "--out", "all.csv", "--json")
    found = json.loads(out)
    assert (code, found["policy"]["n"], found["policy"]["solved"], found["against"]) == (0, 60, 30, None)
    assert found["groups"][0]["rate"] > 0.6
    assert found["groups"][-1]["rate"] < 0.4
    assert len(Path("all.csv").read_text().splitlines()) == 1 + 2 * 2 * 10


@pytest.mark.slow
def test_a_plan_is_shown_and_written_for_rollout(verb: Verb, problems: str) -> None:
    code, out, err = verb("plan", "--problems", problems, "--tokens", "2e2", "-n", "4", "--out", "plan.parquet")
    rows = pq.read_table("plan.parquet").to_pylist()
    assert (code, err) == (0, f"{len(rows)} rows: plan.parquet\n")
    assert "groups with right and wrong answers" in out
    code, out, _ = verb("plan", "--problems", problems, "--tokens", "2e2", "-n", "4", "--json")
    found = json.loads(out)
    assert (code, found["groups"], found["rollouts"]) == (0, len(rows), 4 * len(rows))
    assert found["tokens"] <= 200
    helped = {row["problem_id"] for row in rows if row["hint_level"] == 1}
    assert helped
    assert all(row["hint_text"] == "a\n" for row in rows if row["problem_id"] in helped)


@pytest.mark.slow
def test_what_cannot_be_answered_is_one_sentence(verb: Verb, tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"question": "?"}\n')
    (tmp_path / "ids.jsonl").write_text('{"problem_id": "p", "question": "?"}\n')
    plan = ("plan", "--tokens", "9", "--problems")
    for words in (("surface",), (*plan, "ids.jsonl")):
        code, out, err = verb(*words)
        assert (code, out) == (1, "")
        assert err.startswith("gradus: the lake has no scored rollout with a verdict; sample and score some")
    assert verb(*plan, "own.jsonl")[2].startswith(
        "gradus: own.jsonl line 1: no problem_id; name the artifact that `gradus ingest` makes of the file"
    )
    House(tmp_path / "home").sampled("3", [{}], [None])
    assert verb("surface")[0] == 1
    House(tmp_path / "home").sampled("4", [{}], [True])
    for words in (
        ("surface", "--policy", "zz"),
        ("surface", "--against", "zz"),
        (*plan, "ids.jsonl", "--policy", "zz"),
    ):
        code, out, err = verb(*words)
        assert (code, out) == (2, "")
        assert err == f"gradus: there is no scored rollout of the policy zz; scored rollouts are of {NEW}\n"
