"""Stage curate on real stores: every planned row explained, every dropped one counted, scale."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gradus.components.chosen import FilterConfig, SamplerConfig
from gradus.data.arrays import Bools
from gradus.data.curation.overlap import contaminated
from gradus.data.errors import BadInputError, GateError, UsageError
from gradus.data.lake.store import Ref, Store
from gradus.data.seeds import derive_seed
from gradus.tasks.config.curation import CurateConfig, SampleConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.preflight.checks import check_curate
from gradus.tasks.stages.context import StageContext, StageResult
from gradus.tasks.stages.curate import run

TABLE = {"evaluated": "problems"}
COUNTS = {"a": (8, 3), "b": (8, 0), "c": (8, 8), "d": (8, 4), "e": (8, 1)}


def curate(
    tmp_path: Path,
    config: CurateConfig,
    *,
    seed: int = 7,
    round: int = 0,
    counts: dict[str, tuple[int, int]] | None = None,
    warm: Warm | None = None,
    **more: pa.Table,
) -> tuple[list[dict[str, object]], StageResult]:
    """Run the stage on problems a to f (f unmeasured) and read its plan back, verified."""
    store = Store(tmp_path)
    problems = pa.table({"problem_id": list("abcdef"), "question": [f"what is {c}?" for c in "abcdef"]})
    counts = COUNTS if counts is None else counts
    n, k = ([pair[i] for pair in counts.values()] for i in (0, 1))
    tables = {"problems": problems} | more
    if counts:
        tables.setdefault("difficulty", pa.table({"problem_id": list(counts), "n": n, "k": k}))
    inputs = {role: (store.put(TABLE.get(role, role), table),) for role, table in tables.items()}
    ref = Ref("plan", f"{time.monotonic_ns():032x}")
    writer = store.writer(ref)
    beats: list[float] = []
    kept = warm or Warm()
    ctx = StageContext(store, inputs, writer, seed, kept, lambda frac, text="": beats.append(frac), {"round": round})
    result = run(ctx, config)
    writer.commit()
    assert beats == sorted(beats)
    assert beats[-1] == 1.0
    return store.read(ref).to_pylist(), result


def test_without_settings_every_problem_is_planned_in_order(tmp_path: Path) -> None:
    plan, result = curate(tmp_path, CurateConfig(), counts={})
    assert [row["problem_id"] for row in plan] == list("abcdef")
    assert {row["reason"] for row in plan} == {"never measured, all problems"}
    assert result.summary == {
        "kept": 6, "dropped": 0, "reasons": {}, "problem_ids": list("abcdef"),
    }  # fmt: skip
    assert result.metrics == {
        "data/kept_frac": 1.0, "data/planned_frac": 1.0,
    }  # fmt: skip


def test_a_planned_row_carries_its_settings_group_seed_and_reason(tmp_path: Path) -> None:
    sample = SampleConfig(n=4, temperature=0.7, max_tokens=33)
    plan, _ = curate(tmp_path, CurateConfig(sample=sample, rank="variance", top=1), seed=11, round=5)
    assert plan == [
        {
            "problem_id": "d", "group_id": "d@r5h0", "n": 4, "hint_level": 0, "hint_text": None, "temperature": 0.7,
            "max_tokens": 33, "seed": derive_seed(11, "d", 5, 0),
            "reason": "pass rate 4/8, variance 0.250, rank 1 by variance 0.250",
        }
    ]  # fmt: skip


def test_filters_rank_and_top_count_every_row_they_drop(tmp_path: Path) -> None:
    config = CurateConfig(
        filters=(
            FilterConfig(name="zero_variance"),
            FilterConfig.model_validate({"name": "pass_rate", "low": 0.2, "high": 1, "unmeasured": "drop"}),
        ),
        rank="pass_rate",
        top=1,
    )
    plan, result = curate(tmp_path, config)
    assert [row["problem_id"] for row in plan] == ["d"]
    assert (result.summary["kept"], result.summary["dropped"]) == (1, 5)
    assert result.summary["reasons"] == {
        "zero_variance: all wrong": 1,
        "zero_variance: all right": 1,
        "pass_rate: below 0.2": 1,
        "pass_rate: never measured": 1,
        "top: below the first 1": 1,
    }
    assert result.metrics["data/planned_pass_rate_mean"] == 0.5
    assert (result.metrics["data/kept_frac"], result.metrics["data/planned_frac"]) == (2 / 6, 1 / 6)
    assert {"problem_id": "b", "reason": "zero_variance: all wrong", "planned": False, "question": "what is b?"} in (
        result.samples
    )


def test_ranking_by_historical_std_reads_ragged_histories(tmp_path: Path) -> None:
    histories = pa.array([[0.5, 0.5], [0.0, 1.0, 0.5], None, [1.0, 0.0]], pa.list_(pa.float64()))
    difficulty = pa.table({"problem_id": list("abcd"), "n": [8] * 4, "k": [4] * 4, "history": histories})
    plan, result = curate(tmp_path, CurateConfig(rank="historical_std"), difficulty=difficulty)
    assert result.summary["problem_ids"] == ["d", "b", "a", "c", "e", "f"]
    assert plan[0]["reason"] == "pass rate 4/8, variance 0.250, rank 1 by historical_std 0.500"
    assert plan[4]["reason"] == "never measured, rank 5 by historical_std unknown"


def test_a_cut_among_equal_ranks_is_counted(tmp_path: Path) -> None:
    ranked = CurateConfig.model_validate({"rank": "historical_std", "top": 2})
    histories = pa.table(
        {"problem_id": list("abcdef"), "n": [8] * 6, "k": [3] * 6, "history": [[0.375]] * 6}  # measured once
    )
    plan, result = curate(tmp_path, ranked, difficulty=histories)
    assert [row["problem_id"] for row in plan] == ["a", "b"]
    told = {name: result.summary[name] for name in ("tied_out", "ranking", "tied_value")}
    assert told == {"tied_out": 4, "ranking": "historical_std", "tied_value": "0"}
    by_rate = CurateConfig.model_validate({"rank": "pass_rate", "top": 2})
    assert "tied_out" not in curate(tmp_path, by_rate)[1].summary


def test_a_problem_with_rewards_and_no_verdict_is_ranked_by_them(tmp_path: Path) -> None:
    difficulty = pa.table(
        {
            "problem_id": list("abc"),
            "n": [0, 0, 4],
            "k": [0, 0, 1],
            "reward_n": [4, 2, 4],
            "reward_mean": [-0.0625, 2e15, 0.25],
            "reward_variance": [0.01, 0.25, 0.1875],
        }
    )
    plan, _ = curate(tmp_path, CurateConfig(rank="reward_mean"), difficulty=difficulty)
    assert [row["reason"] for row in plan[:4]] == [
        "mean reward 2e+15 of 2, variance 0.250, rank 1 by reward_mean 2e+15",
        "pass rate 1/4, variance 0.188, rank 2 by reward_mean 0.250",
        "mean reward -0.062 of 4, variance 0.010, rank 3 by reward_mean -0.062",
        "never measured, rank 4 by reward_mean unknown",
    ]


def test_a_variance_draw_explains_who_was_weighted_and_who_explored(tmp_path: Path) -> None:
    config = CurateConfig(sampler=SamplerConfig.model_validate({"name": "variance", "explore_frac": 0.25}), draw=4)
    plan, result = curate(tmp_path, config)
    how = [row["reason"].rpartition(", ")[2] for row in plan]
    assert how == ["drawn by variance"] * 3 + ["drawn to explore"]
    assert {row["problem_id"] for row in plan[:3]} == {"a", "d", "e"}
    assert plan[3]["problem_id"] in {"b", "c", "f"}
    assert result.summary["reasons"] == {"variance: not drawn": 2}


def test_the_draw_depends_on_seed_and_round_and_on_nothing_else(tmp_path: Path) -> None:
    def drawn(seed: int, index: int) -> list[object]:
        config = CurateConfig(sampler="uniform", draw=3)
        return [row["problem_id"] for row in curate(tmp_path, config, seed=seed, round=index)[0]]

    assert drawn(1, 0) == drawn(1, 0)
    assert len({tuple(drawn(seed, index)) for seed in range(4) for index in range(4)}) > 8


def test_seeds_do_not_move_when_other_problems_are_chosen(tmp_path: Path) -> None:
    alone, _ = curate(tmp_path, CurateConfig(rank="variance", top=1))
    every, _ = curate(tmp_path, CurateConfig())
    assert alone[0]["seed"] == next(row["seed"] for row in every if row["problem_id"] == "d")


def test_an_empty_curation_is_a_failure_with_its_reasons(tmp_path: Path) -> None:
    nothing = FilterConfig.model_validate({"name": "pass_rate", "low": 0.9, "high": 0.95, "unmeasured": "drop"})
    with pytest.raises(GateError, match=r"pass_rate: never measured: 1; pass_rate: below 0.9: 4; .*above 0.95: 1"):
        curate(tmp_path, CurateConfig(filters=(nothing,)))
    with pytest.raises(GateError, match="variance: not drawn: 6"):
        curate(
            tmp_path,
            CurateConfig(sampler=SamplerConfig.model_validate({"name": "variance", "explore_frac": 0.0})),
            counts={},
        )
    empty = pa.table({"problem_id": pa.array([], pa.string()), "question": pa.array([], pa.string())})
    with pytest.raises(GateError, match="there are no problems"):
        curate(tmp_path, CurateConfig(), problems=empty)


def test_a_hundred_thousand_rows_take_a_second_or_two(tmp_path: Path) -> None:
    num, rng = 100_000, np.random.default_rng(0)
    ids = pa.array(np.arange(num)).cast(pa.string())
    lengths = rng.integers(1, 6, num)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    history = pa.ListArray.from_arrays(offsets, pa.array(rng.integers(0, 9, lengths.sum()) / 8))
    difficulty = pa.table({"problem_id": ids, "n": np.full(num, 8), "k": rng.integers(0, 9, num), "history": history})
    config = CurateConfig(
        filters=(
            FilterConfig(name="zero_variance"),
            FilterConfig.model_validate({"name": "group_variance", "min": 0.5}),
        ),
        rank="historical_std",
        top=5000,
        sampler="variance",
        draw=512,
    )
    started = time.process_time()
    _, result = curate(tmp_path, config, problems=pa.table({"problem_id": ids, "question": ids}), difficulty=difficulty)
    assert time.process_time() - started < 8  # 0.7 s where it was written; quadratic work would take minutes
    assert result.summary["kept"] == 512
    assert result.summary["kept"] + sum(result.summary["reasons"].values()) == num


def test_filters_without_a_measurement_count_what_they_kept(tmp_path: Path) -> None:
    config = CurateConfig(filters=(FilterConfig.model_validate({"name": "pass_rate", "low": 0.1}),))
    _, found = curate(tmp_path, config, counts=dict.fromkeys("abc", (0, 0)))
    assert found.summary["unmeasured"] == 6
    assert "unmeasured" not in curate(tmp_path, config)[1].summary
    assert "unmeasured" not in curate(tmp_path, config, counts={})[1].summary  # nothing was given that could be read
    assert "unmeasured" not in curate(tmp_path, CurateConfig(), counts=dict.fromkeys("abc", (0, 0)))[1].summary


OWN_FILTER = '''
from gradus.components import component
from gradus.data.curation.results import selection


@component("filter", needs=("domain", "problem.level"))
def easy_sums(candidates):
    """Keep sums of level 1."""
    sums, level = candidates["domain"] == "sums", candidates["problem.level"]
    return selection(candidates.num_rows, [(~sums, "no sum"), (~(level <= 1), "above level 1")])


@component("filter")
def undeclared(candidates):
    """Read whatever there is."""
    return selection(candidates.num_rows, [(candidates["answer"] != "1", "another answer")])


@component("filter", needs=("domain",))
def forgotten(candidates):
    """Read what it does not declare."""
    return selection(candidates.num_rows, [(candidates["answer"] != "1", "another answer")])
'''


def test_a_filter_of_the_users_reads_columns_of_problems_and_keys_of_extra(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_FILTER)
    problems = pa.table(
        {
            "problem_id": list("abcd"),
            "question": ["?"] * 4,
            "answer": list("1121"),
            "domain": ["sums", "signs", "sums", "sums"],
            "extra": ['{"level": 1}', '{"level": 1}', '{"level": 2}', "{}"],
        }
    )

    def planned(name: str) -> list[object]:
        config = CurateConfig(filters=(FilterConfig(name=f"{tmp_path / 'mine.py'}:{name}"),))
        return [row["problem_id"] for row in curate(tmp_path, config, counts={}, problems=problems)[0]]

    assert planned("easy_sums") == ["a"]
    assert planned("undeclared") == ["a", "b", "d"]
    with pytest.raises(BadInputError, match=r"filter mine.py:forgotten reads 'answer' without declaring it: add it to"):
        planned("forgotten")


def hints(*rows: tuple[str, int, str, bool], shown: str = "") -> pa.Table:
    names = ("problem_id", "level", "text", "leaks_answer", "strategy", "shown")
    return pa.Table.from_pylist([dict(zip(names, (*row, "mine", shown), strict=True)) for row in rows])


def test_problems_are_shown_the_hint_of_a_level_from_the_start(tmp_path: Path) -> None:
    table = hints(
        *(("a", 1, "a1", False), ("a", 2, "a2", False), ("b", 2, "b2", True), ("c", 1, "c1", False)),
        *(("d", 2, "d2", False), ("e", 2, "e2", False)),
        shown="Think of this:",
    )
    plan, result = curate(tmp_path, CurateConfig(hint_level=2), round=3, counts={}, hints=table)
    shown = {"a": "a2", "d": "d2", "e": "e2"}  # that of b states its answer; c and f have none of the level
    assert {row["problem_id"]: row["hint_text"] for row in plan if row["hint_level"] == 2} == shown
    assert [row["problem_id"] for row in plan if row["hint_level"] == 0 and row["hint_text"] is None] == list("bcf")
    assert [row["shown"] for row in plan] == ["Think of this:" if each in shown else None for each in "abcdef"]
    assert plan[0]["group_id"] == "a@r3h2"
    assert plan[0]["seed"] == derive_seed(7, "a", 3, 2)
    assert plan[0]["reason"] == "never measured, all problems, shown hint level 2"
    assert plan[1]["reason"] == "never measured, all problems"
    assert result.summary["hinted"] == 3
    assert result.summary["unhinted"] == {"no hint of level 2": 2, "the hint states the answer": 1}
    assert result.metrics["data/planned_hinted_frac"] == 0.5


def test_a_share_of_the_problems_is_shown_hints_and_others_by_round(tmp_path: Path) -> None:
    table = hints(*((each, 1, f"see {each}", False) for each in "abcdef"))

    def hinted(frac: float, round: int) -> set[object]:
        config = CurateConfig(hint_level=1, hinted_frac=frac)
        return {row["problem_id"] for row in curate(tmp_path, config, round=round, hints=table)[0] if row["hint_level"]}

    assert [len(hinted(frac, 1)) for frac in (0.0, 0.5, 0.9, 1.0)] == [0, 3, 5, 6]
    assert hinted(0.5, 1) == hinted(0.5, 1) <= hinted(0.9, 1)
    assert len({frozenset(hinted(0.5, round)) for round in range(8)}) > 1


def test_a_level_that_no_problem_has_a_hint_of_is_a_failure(tmp_path: Path) -> None:
    said = r"curate.hint_level = 2, and none of 6 planned problems has the hint \(no hint of level 2: 6\)"
    with pytest.raises(GateError, match=said):
        curate(tmp_path, CurateConfig(hint_level=2), hints=hints(("a", 1, "x", False)))


def test_hints_and_their_level_are_given_together() -> None:
    for config, inputs in ((CurateConfig(hint_level=1), {}), (CurateConfig(), {"hints": ["h.jsonl"]})):
        with pytest.raises(UsageError, match="--hints goes with --hint-level N, from 1 on"):
            check_curate(config, inputs)
    check_curate(CurateConfig(hint_level=1), {"hints": ["h.jsonl"]})


def test_a_warm_worker_compares_the_same_problems_with_evaluated_ones_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, warm = CurateConfig(filters=(FilterConfig(name="decontaminated"),)), Warm()
    compared: list[int] = []

    def counting(texts: pa.Array, evaluated: pa.Array) -> Bools:
        compared.append(len(evaluated))
        return contaminated(texts, evaluated)

    monkeypatch.setattr("gradus.tasks.stages.curate.contaminated", counting)

    def planned(*evaluated: str) -> list[object]:
        table = pa.table({"problem_id": list(evaluated), "question": [f"What is {each}?" for each in evaluated]})
        return [row["problem_id"] for row in curate(tmp_path, config, warm=warm, evaluated=table)[0]]

    assert [planned("b", "x"), planned("b", "x"), planned("c"), planned("b", "x")] == [
        list("acdef"), list("acdef"), list("abdef"), list("acdef"),
    ]  # fmt: skip
    assert compared == [2, 1, 2]
