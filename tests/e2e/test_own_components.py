"""docs/extending.md as a user follows it: its files in a folder of theirs, one component of each kind, a training."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from gradus.components import KINDS
from tests.e2e.conftest import ROOT, Program

PAGE = (ROOT / "docs" / "extending.md").read_text()
TOKENIZER = PreTrainedTokenizerFast.from_pretrained(ROOT / "data" / "samples" / "policy")
BLOCKS = dict(re.findall(r"^`([\w.]+)`:\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def trained(new_program: Callable[..., Program]) -> Program:
    program = new_program(warm=True)
    for name, text in BLOCKS.items():
        (program.home / name).write_text(text)
    for name in ("train", "heldout"):
        file = program.home / f"{name}.jsonl"
        file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:24]))
    code, _, said = program.run("train", "mine.toml", "--json")
    assert code == 0, said
    return program


def test_the_page_has_a_component_of_each_kind() -> None:
    assert sorted(re.findall(r'@component\("([^"]+)"', BLOCKS["methods.py"])) == sorted(KINDS)


def test_each_is_what_the_training_computed_with(trained: Program) -> None:
    questions = {row["problem_id"]: row["question"] for row in trained.rows("problems/*")}
    plan = [row for row in trained.rows("plan/*") if "methods.py" in row["reason"]]
    assert all("by methods.py:shortest" in row["reason"] for row in plan)
    assert all("drawn by methods.py:every_other" in row["reason"] for row in plan)
    assert len(plan) == 8
    assert all(len(re.findall("[0-9]+", questions[row["problem_id"]])) <= 7 for row in plan)
    lengths = [int(re.search(r"rank (\d+)", row["reason"])[1]) for row in plan]  # type: ignore[index]
    assert {row["temperature"] for row in plan} == {0.9}
    assert lengths == [2 * index + 2 for index in range(8)], "every other one of the ranking, from the second on"
    _check_hints(trained)
    scores, rollouts = trained.rows("scores/*"), {row["rollout_id"]: row for row in trained.rows("rollouts/*")}
    gold = {row["problem_id"]: row["answer"] for row in trained.rows("problems/*")}
    assert len(scores) == len(rollouts)
    for row in scores:
        words = rollouts[row["rollout_id"]]["completion"].split()
        right = bool(words) and re.fullmatch(r"-?[0-9]+", words[-1]) and int(words[-1]) == int(gold[row["problem_id"]])
        assert row["reward"] == float(bool(right))
        for mark in row["marks"] or []:  # the tokens from the first to the last that hold a character of the word
            tokens, spelled = rollouts[row["rollout_id"]]["completion_tokens"], TOKENIZER.decode
            behind, before = (spelled(tokens[: mark[each]], skip_special_tokens=True) for each in ("end", "start"))
            text = rollouts[row["rollout_id"]]["completion"].rstrip()
            assert (mark["name"], mark["label"], behind.rstrip()) == ("answer", words[-1], text)
            assert len(before) <= len(text) - len(words[-1]) < len(before) + len(spelled(tokens[mark["start"]]))
    assert sum(bool(row["marks"]) for row in scores) == sum(
        bool(row["completion"].split()) for row in rollouts.values()
    )
    (checkpoint,) = [
        manifest
        for manifest in map(
            json.loads, (path.read_text() for path in trained.home.glob("lake/checkpoints/*/_manifest.json"))
        )
        if manifest["config"].get("loss")
    ]
    named = {key: value["name"] for key, value in checkpoint["identity"]["config"].items() if isinstance(value, dict)}
    assert named == {
        "advantage": "methods.py:signed",
        "loss": "methods.py:plain",
        "aggregation": "methods.py:summed",
        "correction": "methods.py:halved",
        "optimizer": "methods.py:heavy_ball",
    }
    (report,) = trained.home.glob("lake/checkpoints/*/_report.json")
    metrics = json.loads(report.read_text())["metrics"]
    assert metrics["policy/halved"] == pytest.approx(0.5)
    assert metrics["policy/unsure"] == pytest.approx(0.25, abs=0.02)
    assert [each["name"] for each in checkpoint["identity"]["config"]["weights"]] == ["methods.py:unsure"]
    assert metrics["policy/plain_logp"] < 0


def _check_hints(trained: Program) -> None:
    """Hints have twice as many words where the profile, which is before the round, solved nothing."""
    profile = next(e for e in trained.events() if (e.get("stage"), e.get("purpose")) == ("difficulty", "profile"))
    solved = {row["problem_id"]: row["k"] > 0 for row in trained.rows(profile["output"])}
    words = {row["problem_id"]: row["solution"].split() for row in trained.rows("problems/*")}
    hints = trained.rows("hints/*")
    assert {row["strategy"] for row in hints} == {"methods.py:first_numbers"}
    assert {solved[row["problem_id"]] for row in hints} == {True, False}
    for row in hints:
        share = row["fraction"] * (1 if solved[row["problem_id"]] else 2)
        every = words[row["problem_id"]]
        assert row["text"].split() == every[: max(1, int(share * len(every)))]


def test_the_measure_of_the_page_asks_the_policy_about_each_rollout_that_is_learned_from(trained: Program) -> None:
    least = {row["rollout_id"]: row["doubt.least"] for row in trained.rows("measures/*")}
    rollouts = {row["rollout_id"]: row for row in trained.rows("rollouts/*") if row["rollout_id"] in least}
    assert {row["rollout_id"] for row in trained.rows("batch/*")} == least.keys()
    for name, row in rollouts.items():  # sampled at T < 1: log p^(1/T) less the log of a sum that is at most 1
        assert row["temperature"] <= 0.9
        assert least[name] <= row["temperature"] * min(row["logprobs"]) + 1e-3


def test_a_judge_of_the_page_marks_every_completion_and_the_next_wave_reads_its_marks(trained: Program) -> None:
    before = {row["rollout_id"] for row in trained.rows("rollouts/*")}
    run = trained.json("train", "mine.toml", "--method", "judge.toml")["run"]
    rows = [row for row in trained.rows("rollouts/*") if row["rollout_id"] not in before]
    marks = {row["rollout_id"]: row["reward"] for row in trained.rows("scores/*")}
    judged = {row["about"][0]: marks[row["rollout_id"]] for row in rows if row.get("use") == "judge"}
    assert judged.keys() <= before
    assert {row["origin"] for row in rows if row.get("use") == "judge"} == {"judge"}
    more = [row for row in rows if row.get("wave") == 3]
    assert len(more) == sum(mark < 0.5 for mark in judged.values()) > 0
    assert [Path(e["output"]).parent.name for e in trained.events(run) if e.get("purpose") == "ask1"] != []


def test_the_file_is_part_of_the_identity_and_its_folder_is_not(trained: Program, tmp_path: Path) -> None:
    again = json.loads(trained.run("train", "mine.toml", "--dry-run", "--json")[1])
    assert {call["what"] for call in again["calls"]} == {"reused"}, "read or run, a reward is the same"
    methods = trained.home / "methods.py"
    text = methods.read_text()
    methods.write_text(text + "\n# another version\n")
    changed = json.loads(trained.run("train", "mine.toml", "--dry-run", "--json")[1])
    methods.write_text(text)
    assert again["run"] != changed["run"]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("update.advantage=methods.py:gone", "has no function 'gone'"),
        ("update.advantage=methods.py:close", "close is registered as reward, not as advantage"),
        ("update.advantage.scale=0", "update.advantage.scale: it must be greater than 0"),
        ("update.advantage.scael=1", "did you mean scale?"),
        ("update.advantage=nowhere.py:f", "there is no file"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_starts(trained: Program, key: str, said: str) -> None:
    before = sorted(path.name for path in (trained.home / "runs").iterdir())
    code, out, err = trained.run("train", "mine.toml", "--set", key)
    assert (code, out) == (2 if "scale" in said or "no file" in said else code, "")
    assert code in (1, 2)
    assert said in err, err
    assert "Traceback" not in err
    assert sorted(path.name for path in (trained.home / "runs").iterdir()) == before


def test_a_component_that_fails_while_it_computes_is_named_with_its_line(trained: Program) -> None:
    (trained.home / "broken.py").write_text("def odd(candidates):\n    return candidates['question'], 1\n")
    code, out, err = trained.run("curate", "--problems", "train.jsonl", "--filter", "broken.py:odd")
    assert (code, out) == (1, "")
    assert "filter odd (broken.py line 1) returned (ndarray of shape (24,), int); a filter returns" in err
    assert "Traceback" not in err
