"""Rewards that hang or print: the stage `score` ends early, with the rows, and names the log."""

import pytest

from gradus.data.errors import StageError
from gradus.tasks.config.score import RewardConfig, ScoreConfig
from gradus.tasks.stages.gates import score_breach
from tests.tasks.stages.score.scoring import OUT, rollouts_of, row, score


def test_a_reward_that_hangs_on_every_row_ends_the_stage_after_a_few(store, warm, tmp_path):
    (tmp_path / "mine.py").write_text("import time\ndef stuck(rows):\n    time.sleep(600)")
    config = ScoreConfig(rewards=(RewardConfig(name=f"{tmp_path}/mine.py:stuck"),), item_timeout_s=0.5)
    rollouts = rollouts_of(store, *(row(f"p{i:02d}", "text", "3") for i in range(40)))
    with pytest.raises(StageError) as caught:
        score(store, warm, config, rollouts)
    said = str(caught.value)
    assert "mine.py:stuck did not answer within 0.5 s on 4 rows, one after another, and judged none" in said
    assert all(f"p{i}:0" in said for i in ("00", "10", "20", "30"))


def test_time_outs_that_break_the_limit_for_certain_end_the_stage_early(store, warm, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import time\ndef odd(rows):\n    for row in rows:\n        time.sleep(600 * (int(row['answer']) % 2))\n"
        "    return [1.0] * len(rows)"
    )
    config = ScoreConfig(
        rewards=(RewardConfig(name=f"{tmp_path}/mine.py:odd"),), item_timeout_s=0.2, max_error_frac=0.1, shard_rows=20
    )
    rollouts = rollouts_of(store, *(row(f"p{i:02d}", "text", str(i)) for i in range(60)))
    with pytest.raises(StageError, match="on 7 rows, more than max_error_frac allows") as caught:
        score(store, warm, config, rollouts)  # ten of the first shard's rows are stored before
    assert "max_error_frac" in str(caught.value.hint)
    assert store.writer(OUT).done == {"part-00000"}


def test_an_error_of_a_reward_names_the_log_with_what_it_printed(store, warm, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADUS_RUN_LOGS", str(tmp_path / "logs"))
    (tmp_path / "logs").mkdir()
    file = tmp_path / "mine.py"
    file.write_text("def f(rows):\n    print('I give up')\n    raise ValueError('no')\n")
    config = ScoreConfig(rewards=(RewardConfig(name=f"{file}:f"),), correct_at=0.5)
    log = tmp_path / "logs" / "reward-mine-f.log"
    with pytest.raises(StageError) as caught:
        score(store, warm, config, rollouts_of(store, row("a", "x"), row("b", "y")))
    assert "I give up" in log.read_text()
    assert caught.value.hint.endswith(f"; what it printed is in {log}")
    report = {"summary": {"rows": 2, "error": 2, "first_failed": ["a:0: no"]}}
    assert score_breach(report, config).endswith(
        "(what the reward printed is in the logs of the run: reward-mine-f.log)"
    )


def test_a_reward_whose_server_is_down_is_asked_no_more_and_judges_the_others_once_it_is_up(store, warm, tmp_path):
    file, down = tmp_path / "mine.py", tmp_path / "down"
    file.write_text(
        "from pathlib import Path\nHERE = Path(__file__).parent\n"
        "def asks(rows):\n"
        "    if any(int(row['problem_id'][1:]) >= 100 for row in rows) and (HERE / 'down').exists():\n"
        "        raise ConnectionError('no answer')\n"
        "    with (HERE / 'asked').open('a') as log:\n"
        "        log.write(''.join(row['problem_id'] + '\\n' for row in rows))\n"
        "    return [float(row['answer']) for row in rows]\n"
    )
    config = ScoreConfig(rewards=(RewardConfig(name=f"{file}:asks"),), correct_at=0.5, shard_rows=600)
    rollouts = rollouts_of(store, *(row(f"p{i:04d}", "text", str(i % 2)) for i in range(900)))
    down.touch()
    sentence = r"mine\.py:asks failed on 129 rows one after another: .*no answer.*; the rows that were judged are kept"
    with pytest.raises(StageError, match=sentence):
        score(store, warm, config, rollouts)
    assert store.writer(OUT).done == {"part-00000"}
    kept = store.writer(OUT).table("part-00000")
    judged = [
        name
        for name, reward in zip(*kept.select(["problem_id", "reward"]).to_pydict().values(), strict=True)
        if reward is not None
    ]
    assert len(judged) >= 90
    unasked = [text for text in kept.column("error").to_pylist() if text and "not judged, since " in text]
    # Rows from all over were tried before; on a busy machine one judge fails before the last answer of the other.
    assert 0 <= 600 - len(judged) - 129 - len(unasked) < 4 + 129
    down.unlink()
    (tmp_path / "asked").unlink()
    score(store, warm, config, rollouts)
    again = (tmp_path / "asked").read_text().split()
    assert set(judged).isdisjoint(again)
    table = store.read(OUT)
    assert table.column("reward").to_pylist() == [float(i % 2) for i in range(900)]


def test_failures_with_verdicts_between_them_end_no_stage_early(store, warm, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def odd(rows):\n    if any(int(row['problem_id'][1:]) % 2 for row in rows):\n        raise ValueError('odd')\n"
        "    return [1.0] * len(rows)\n"
    )
    config = ScoreConfig(rewards=(RewardConfig(name=f"{file}:odd"),), correct_at=0.5, max_error_frac=0.1)
    score(store, warm, config, rollouts_of(store, *(row(f"p{i:04d}", "text", "1") for i in range(400))))
    errors = store.read(OUT).column("error").to_pylist()
    assert [text is None for text in errors] == [True, False] * 200
    assert not any("not judged, since" in text for text in errors if text)


def test_failures_that_the_limit_allows_end_no_stage_however_many_follow_each_other(store, warm, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def odd(rows):\n    if any(row['problem_id'] < 'p0150' for row in rows):\n        raise ValueError('odd')\n"
        "    return [1.0] * len(rows)\n"
    )
    config = ScoreConfig(rewards=(RewardConfig(name=f"{file}:odd"),), correct_at=0.5, max_error_frac=0.6)
    score(store, warm, config, rollouts_of(store, *(row(f"p{i:04d}", "text", "1") for i in range(300))))
    assert store.read(OUT).column("outcome").to_pylist().count("error") == 150
