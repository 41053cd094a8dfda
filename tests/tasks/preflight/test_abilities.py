"""What settings ask of each other, of the policy and of what is installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from gradus.data.errors import BadInputError, UsageError
from gradus.flows.recipe.setting_faults import valid
from gradus.tasks.config.learning import UpdateConfig
from gradus.tasks.config.rollout import RayConfig, RolloutConfig
from gradus.tasks.config.score import SCORE, RewardConfig, ScoreConfig
from gradus.tasks.preflight.abilities import check_engine, check_ks, check_learning, check_length
from gradus.tasks.preflight.checks import check_name, check_out, check_stage


def test_pass_at_k_needs_k_samples() -> None:
    check_ks((1, 8), 8)
    with pytest.raises(UsageError, match="pass@16 needs 16 samples of each problem, and n is 8; sample 16, or ask"):
        check_ks((16, 1), 8)


@pytest.mark.parametrize("policy", ["bundled", "mine", "checkpoints/00aa11bb", "adapter+bundled"])
def test_a_completion_leaves_room_for_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.chdir(tmp_path)
    config = json.dumps({"text_config": {"max_position_embeddings": 256}})
    for folder in (tmp_path / "mine", tmp_path / "lake" / "checkpoints" / "00aa11bb"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config)
    check_length(tmp_path / "lake", policy, 255)
    with pytest.raises(UsageError, match=r"profile.max_tokens = 256 leaves no room .* has 256 positions; lower"):
        check_length(tmp_path / "lake", policy, 256, "profile.max_tokens")


@pytest.mark.parametrize("body", ["{}", '{"max_position_embeddings": null}', '{"text_config": 3}', None])
def test_a_policy_that_states_no_limit_is_not_refused(tmp_path: Path, body: str | None) -> None:
    if body is not None:
        (tmp_path / "config.json").write_text(body)
    check_length(tmp_path, str(tmp_path), 1 << 40)
    check_length(tmp_path, "someone/model@abc", 1 << 40)


@pytest.mark.parametrize("body", ["{", "[]", "\udcff"])
def test_a_config_that_cannot_be_read_is_named(tmp_path: Path, body: str) -> None:
    (tmp_path / "config.json").write_bytes(body.encode(errors="surrogateescape"))
    with pytest.raises(BadInputError, match=r"config.json is not"):
        check_length(tmp_path, str(tmp_path), 8)


def test_an_engine_whose_package_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.tasks.preflight.abilities.find_spec", lambda name: None)
    check_engine(RolloutConfig())
    for settings, package, extra in (
        ({"engine": "vllm"}, "vllm", "gpu"),
        ({"engine": "openai"}, "openai", "openai"),
        ({"ray": RayConfig(workers=2)}, "ray", "ray"),
    ):
        with pytest.raises(
            UsageError, match=rf"the package {package} is not installed; pip install 'gradus\[{extra}\]'"
        ):
            check_engine(RolloutConfig(**settings))


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "http://", "http://[x", "http://h:99999999", "ftp://h/"])
def test_a_server_needs_an_address(url: str) -> None:
    with pytest.raises(UsageError, match=r"server.url: it is not an address; write it as http://"):
        valid(RolloutConfig, {"server": {"url": url}})


@pytest.mark.parametrize(
    ("rollout", "update", "refused"),
    [
        ({}, {"correction": "token_truncated"}, False),
        ({"top_p": 0.9}, {}, False),
        ({"top_p": 0.9}, {"correction": "token_truncated"}, True),
        ({"top_k": 5}, {"correction": "sequence_masked"}, True),
        ({"engine": "openai"}, {}, False),
        ({"engine": "openai", "server": {"tokens": False}}, {}, True),
    ],
)
def test_an_update_that_would_refuse_every_rollout(
    rollout: dict[str, Any], update: dict[str, Any], refused: bool
) -> None:
    def check() -> None:
        check_learning(RolloutConfig.model_validate(rollout), UpdateConfig.model_validate(update))

    if not refused:
        check()
        return
    with pytest.raises(UsageError, match=r"does not hold for rollouts sampled|an update needs them"):
        check()


NAMES: list[tuple[str, str]] = [
    ("", "is empty"),
    ("  ", "is empty"),
    ("x" * 129, "is longer than 128 bytes"),
    ("é" * 65, "is longer than 128 bytes"),
    ("a/b", "holds a slash"),
    ("a\\b", "holds a slash"),
    ("a\x1b[31m", "holds control characters"),
    ("a\u202eb", "holds control characters"),
    ("..", "begins with a dot"),
    ("-x", "begins with a dot, a dash"),
    ("x ", "ends with a space"),
]


@pytest.mark.parametrize(("name", "problem"), NAMES)
def test_a_name_that_no_run_can_have(name: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        check_name(name, "the name")


@pytest.mark.parametrize("name", ["demo-1a2b3c4d", "Versuch 3 (größer)", "x" * 128, "a.b_c-d"])
def test_other_names_are_taken(name: str) -> None:
    check_name(name, "the name")


@pytest.mark.parametrize(
    ("source", "name", "problem"),
    [
        (b"def judge(rows): return []", "judge", ""),
        (b"judge = lambda rows: []", "judge", ""),
        (b"from somewhere import judge", "judge", ""),
        (b"import other as judge", "judge", ""),
        (b"from somewhere import *", "judge", ""),
        (b"globals()['jud' + 'ge'] = len", "judge", ""),
        (b"def judge(rows): return []", "jugde", "has no function 'jugde'; did you mean judge"),
        (b"", "judge", "has no function 'judge'; it defines nothing"),
        (b"x = 1\ndef judge(:", "judge", "line 2 is not valid Python"),
        (b"\xff", "judge", "is not valid Python"),
        (b"\0", "judge", "is not valid Python"),
    ],
)
def test_the_function_of_a_reward_is_looked_for(tmp_path: Path, source: bytes, name: str, problem: str) -> None:
    file = tmp_path / "mine.py"
    file.write_bytes(source)
    config = ScoreConfig(rewards=(RewardConfig(name=f"{file}:{name}"),))
    if not problem:
        check_stage(SCORE, config, {})
        return
    with pytest.raises(BadInputError, match=problem):
        check_stage(SCORE, config, {})


def test_a_reward_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        check_stage(SCORE, ScoreConfig(rewards=(RewardConfig(name=f"{tmp_path}/mine.py:judge"),)), {})


def test_a_result_can_be_written_to_where_folders_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out in (None, str(tmp_path), str(tmp_path / "new" / "x.parquet"), str(tmp_path / "file")):
        check_out(out)
    with pytest.raises(UsageError, match="file cannot be written to; give another path"):
        check_out(str(tmp_path / "file" / "x.parquet"))
