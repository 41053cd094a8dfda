"""Measurements of a user through the real program: histories, 0/1 rewards, pass rates, levels, tiers of hints."""

import json
import statistics
from collections import Counter
from collections.abc import Callable

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import ROOT, Program

DATA = ROOT.parent / "shared" / "data"
TIERS = DATA / "hints" / "deepscaler_val200_hints.parquet"
MATH = DATA / "math" / "test.jsonl"


@pytest.fixture(scope="module")
def program(new_program: Callable[..., Program]) -> Program:
    return new_program(warm=True)


def test_accuracy_histories_of_a_json_rank_one_s_own_problems(program: Program) -> None:
    rng = np.random.default_rng(7)
    histories = {f"q{at}": rng.random(int(rng.integers(2, 9))).round(3).tolist() for at in range(40)}
    rows = [{"problem_id": name, "question": f"{at} + 1 =", "answer": at + 1} for at, name in enumerate(histories)]
    (program.home / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (program.home / "histories.json").write_text(json.dumps(histories, indent=1))
    words = ("--difficulty", "histories.json", "--set", "rank.name=historical_std", "--top", "10")
    plan = program.json("curate", "--problems", "mine.jsonl", *words)
    assert plan["problem_ids"] == sorted(histories, key=lambda name: -statistics.pstdev(histories[name]))[:10]
    training = ("train", "demo", "--set", "problems=mine.jsonl", "--set", "begin.difficulty=histories.json")
    code, out, err = program.run(*training, "--set", "begin.any_policy=true", "--dry-run")
    assert code == 0, err
    assert "forecast" in out.lower() or "signal" in out.lower(), out
    (program.home / "wrong.json").write_text('{"q0": [0.5, 1.5], "q1": "often"}')
    code, _, err = program.run("curate", "--problems", "mine.jsonl", "--difficulty", "wrong.json")
    assert (code, "wrong.json line 1, q1: 'often' is no measurement" in " ".join(err.split())) == (1, True)


@pytest.mark.skipif(not TIERS.is_file(), reason="the hint table of Scaf-GRPO is not here")
def test_rewards_of_a_published_run_make_rates_buckets_and_the_set_without_variance(program: Program) -> None:
    rows = pq.read_table(TIERS).to_pylist()
    rewards = {row["id"]: row["rollout_reward_list"] for row in rows}
    mixed = {name for name, given in rewards.items() if 0 < sum(given) < 8}
    (program.home / "rewards.json").write_text(json.dumps(rewards))
    (program.home / "rates.json").write_text(json.dumps({name: sum(given) / 8 for name, given in rewards.items()}))
    table = program.json("ingest", str(TIERS))["artifact"]
    for difficulty in ("rewards.json", "rates.json"):
        words = ("--difficulty", difficulty, "--filter", "zero_variance:unmeasured=drop", "--draw", "200")
        assert set(program.json("curate", "--problems", table, *words)["problem_ids"]) == mixed
    domains = program.json(
        "sql", f"select domain, count(*) from problems where '{table}' like '%'||artifact group by 1"
    )
    assert dict(map(tuple, domains["rows"])) == {"hard": 87, "medium": 46, "easy": 46}
    hints = program.json("hint", "--problems", table, "--set", "strategy.name=tiers")
    assert (hints["problems"], hints["stated_early"]) == (179, 21)
    shown = program.json("sql", "select problem_id, level, text from hints order by all")["rows"]
    texts = {(name, level): text for name, level, text in shown}
    assert all(text.startswith(texts[name, 1][:20]) for (name, _), text in texts.items() if (name, 1) in texts)


@pytest.mark.skipif(not MATH.is_file(), reason="MATH is not here")
def test_math_is_chosen_by_domain_and_level(program: Program) -> None:
    rows = [json.loads(line) for line in MATH.read_text().splitlines()]
    table = program.json("ingest", str(MATH))
    assert (table["rows"], table["refused"]) == (5000, {})
    condition = "where:condition=domain = 'Geometry' and problem.level = 'Level 5'"
    plan = program.json("curate", "--problems", table["artifact"], "--filter", condition, "--draw", "5000")
    assert plan["kept"] == sum(row["type"] == "Geometry" and row["level"] == "Level 5" for row in rows)
    of_table = f"from problems where '{table['artifact']}' like '%' || artifact"
    counted = program.json("sql", f"select domain, extra->>'level', count(*) {of_table} group by all")["rows"]
    wanted = Counter((row["type"], row["level"]) for row in rows)
    assert {(domain, level): number for domain, level, number in counted} == wanted
