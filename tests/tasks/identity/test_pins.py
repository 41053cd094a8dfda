"""A user's own files are part of a stage's identity: their content counts, and a run keeps to what it began with."""

import hashlib
from pathlib import Path

from gradus.tasks.config.curation import CurateConfig
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.identity.pins import content_sha256, pinned, source_facts


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_file_and_a_folder_are_their_contents(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, text in (("a.jsonl", "1"), ("sub/b.jsonl", "2")):
        (tmp_path / name).write_text(text)
    assert content_sha256(tmp_path / "a.jsonl") == sha256("1")
    assert content_sha256(tmp_path) == sha256(f"{sha256('1')} a.jsonl\n{sha256('2')} sub/b.jsonl")
    assert content_sha256(tmp_path / "nonesuch") == ""


def test_a_source_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("old")
    assert source_facts(str(file)) == {"source": str(file), "source_sha256": sha256("old")}


def test_a_reward_of_ones_own_is_pinned_and_the_others_are_left(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def judge(rows): return [1.0]")
    named = RewardConfig(name="numeric")
    first = pinned(ScoreConfig(rewards=(RewardConfig(name=f"{file}:judge"), named)))
    assert isinstance(first, ScoreConfig)
    assert [reward.source_sha256 for reward in first.rewards] == [sha256("def judge(rows): return [1.0]"), ""]
    file.write_text("def judge(rows): return [0.0]")
    assert pinned(first) == first
    renewed = pinned(first, renew=True)
    assert isinstance(renewed, ScoreConfig)
    assert renewed.rewards[0].source_sha256 == sha256("def judge(rows): return [0.0]")


def test_settings_that_name_no_file_stay_as_they_are() -> None:
    config = CurateConfig(draw=3)
    assert pinned(config) is config


def test_a_loss_of_an_origin_is_pinned_as_the_update_s_own_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def likelihood(rows):\n    return -rows['now.logp'], {}\n")
    origin = {"origin": "expert", "loss": f"{file}:likelihood"}
    config = UpdateConfig.model_validate({"origin_losses": [origin], "loss": f"{file}:likelihood"})
    found = pinned(config)
    assert isinstance(found, UpdateConfig)
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert [found.loss.source_sha256, found.origin_losses[0].loss.source_sha256] == [digest, digest]
