"""Stage rollout over an engine that cannot repeat itself: retries, failed rows, limits, rows kept and never doubled.

The engine is the one part that cannot fail on demand, so these tests bring their own; store, shards and files are real.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradus.data.errors import BadInputError, StageError
from gradus.data.lake.schema import PLAN, cast_to_schema
from gradus.data.lake.store import Ref, Store
from gradus.models.engines.base import EngineError, Finished, OnTokens, Request
from gradus.models.policy import new_policy, prompt_tokens
from gradus.models.templates import PromptConfig
from gradus.models.tiny_tokenizer import tiny_tokenizer
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.host.processes import Warm
from gradus.tasks.runtime.calls import Job, execute
from gradus.tasks.stages.rollout.groups import Planned
from gradus.tasks.stages.rollout.rows import rollouts_table

NUM_GROUPS, NUM_SAMPLES = 5, 4
KEY = "c" * 16
IDS = [f"{KEY}:p{g}@h0:{s}" for g in range(NUM_GROUPS) for s in range(NUM_SAMPLES)]


class Engine:
    """Answers in reverse order with one token; `fails` says which requests fail how often, `ends_at` when it dies."""

    name, reproducible, remarks = "stub 1", False, ()

    def __init__(self, fails: dict[str, int] | None = None, ends_at: int = 10**9) -> None:
        self.fails = dict(fails or {})
        self.ends_at = ends_at
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def load(self, folder: Path) -> None:
        del folder

    def close(self) -> None:
        """Nothing is held."""

    def generate(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Iterator[Finished]:
        for index, request in reversed(list(enumerate(requests))):
            name = request.rollout_id
            self.asked[name] += 1
            if sum(self.answered.values()) >= self.ends_at:
                raise EngineError("the engine is gone", "start it again")
            if self.fails.get(name, 0) >= self.asked[name]:
                yield Finished(index, (), (), "error", "bad luck")
                continue
            self.answered[name] += 1
            yield Finished(index, [request.seed % 20], [-0.5], "stop")
            if on_tokens is not None:
                on_tokens(sum(self.answered.values()))


Roll = Callable[..., dict[str, Any]]


@pytest.fixture
def roll(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roll:
    policy = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=256, seed=0)
    policy.model.save_pretrained(tmp_path / "p")
    policy.tokenizer.save_pretrained(tmp_path / "p")
    names = [f"p{g}" for g in range(NUM_GROUPS)]
    problems = pa.table({"problem_id": names, "question": ["1 + 1 ="] * NUM_GROUPS})
    sizes = pa.array([NUM_SAMPLES] * NUM_GROUPS, pa.int32())
    plan = pa.table({"problem_id": names, "group_id": [f"{n}@h0" for n in names], "n": sizes})
    inputs = {"plan": [str(store.put("plan", plan))], "problems": [str(store.put("problems", problems))]}
    inputs["policy"] = [str(store.adopt(tmp_path / "p"))]

    def run(engine: Engine, **config: Any) -> dict[str, Any]:
        monkeypatch.setattr("gradus.tasks.stages.rollout.stage.open_engine", lambda *_: (engine, policy.prompt_side))
        settings = {"engine": "openai", "flush_s": 0.0, "shard_rows": 8, **config}
        job = vars(Job("rollout", str(store.root), f"rollouts/{'c' * 32}", inputs, settings, seed=1))
        return execute(job, Warm(), lambda frac, text="": None)

    return run


def rows(store: Store) -> list[dict[str, Any]]:
    return store.read(Ref("rollouts", "c" * 32)).to_pylist()


def test_a_request_that_fails_is_asked_again_and_nothing_else_is(roll: Roll, store: Store) -> None:
    engine = Engine({f"{KEY}:p1@h0:2": 2})
    report = roll(engine)
    assert [row["rollout_id"] for row in rows(store)] == IDS
    assert engine.asked == Counter({**dict.fromkeys(IDS, 1), f"{KEY}:p1@h0:2": 3})
    assert report["summary"]["failed_requests"] == 0


def test_what_fails_for_good_is_a_row_with_its_reason(roll: Roll, store: Store) -> None:
    report = roll(Engine({f"{KEY}:p1@h0:2": 99}), max_failed_frac=0.05)
    (failed,) = [row for row in rows(store) if row["finish_reason"] == "error"]
    assert (failed["rollout_id"], failed["error"]) == (f"{KEY}:p1@h0:2", "bad luck")
    assert (failed["completion"], failed["completion_tokens"], failed["logprobs"]) == (None, None, None)
    # The update checks who sampled before it leaves out what nobody judged.
    assert len({row["policy"] for row in rows(store)}) == 1
    assert report["summary"]["failed_requests"] == 1
    assert report["summary"]["tokens"] == len(IDS) - 1


def test_too_many_failures_end_the_stage_and_the_next_attempt_asks_for_the_rest_alone(roll: Roll, store: Store) -> None:
    with pytest.raises(StageError, match=r"2 of 20 requests failed.*: c{16}:p\d@h0:0: bad luck"):
        roll(Engine({f"{KEY}:p2@h0:0": 99, f"{KEY}:p3@h0:0": 99}), max_failed_frac=0.05)
    again = Engine()
    roll(again, max_failed_frac=0.05)
    assert set(again.asked) == {f"{KEY}:p2@h0:0", f"{KEY}:p3@h0:0", *IDS[16:]}
    assert set(again.asked.values()) == {1}
    assert [row["rollout_id"] for row in rows(store)] == IDS


def test_failures_of_all_attempts_count_against_the_limit(roll: Roll) -> None:
    with pytest.raises(StageError, match="the engine is gone"):
        roll(Engine({f"{KEY}:p1@h0:2": 99}, ends_at=9), max_failed_frac=0.05)
    with pytest.raises(StageError, match="2 of 20 requests failed"):
        roll(Engine({f"{KEY}:p4@h0:0": 99}), max_failed_frac=0.05)


def test_no_request_is_sent_after_many_that_failed_one_after_another(
    roll: Roll, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradus.tasks.stages.gates.BURST_ROWS", 3)
    fails = dict.fromkeys(IDS[8:15], 99)  # the second shard, answered from its end: one row before they begin
    down = Engine(fails)
    with pytest.raises(StageError, match=r"4 requests failed one after another \(the last, c{16}:p2@h0:3: bad luck\)"):
        roll(down)
    assert set(down.asked) == {*IDS[:8], *IDS[11:16]}
    again = Engine()
    roll(again)
    assert set(again.asked) == {*IDS[8:15], *IDS[16:]}
    assert [row["rollout_id"] for row in rows(store)] == IDS
    roll_all = Engine(fails)
    store.discard(Ref("rollouts", "c" * 32))
    roll(roll_all, max_failed_frac=0.5)  # the limit allows ten
    assert sum(row["finish_reason"] == "error" for row in rows(store)) == 7


def test_requests_that_fail_with_others_answered_between_them_are_asked_again(
    roll: Roll, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradus.tasks.stages.gates.BURST_ROWS", 3)
    engine = Engine(dict.fromkeys(IDS[::2], 1))
    roll(engine)
    assert engine.asked == Counter({name: 2 - index % 2 for index, name in enumerate(IDS)})
    assert [row["rollout_id"] for row in rows(store)] == IDS


@pytest.mark.parametrize("ends_at", [0, 3, 8, 13])
def test_an_engine_that_goes_away_loses_nothing_that_was_sampled(roll: Roll, store: Store, ends_at: int) -> None:
    first, second = Engine(ends_at=ends_at), Engine()
    with pytest.raises(StageError, match="the engine is gone; start it again"):
        roll(first)
    report = roll(second)
    assert first.answered + second.answered == Counter(dict.fromkeys(IDS, 1))
    assert report["summary"]["tokens_generated"] == len(IDS) - ends_at
    assert [row["rollout_id"] for row in rows(store)] == IDS


def test_the_same_seeds_are_asked_for_however_the_work_is_cut(roll: Roll, store: Store, tmp_path: Path) -> None:
    roll(Engine())
    wanted = [(row["rollout_id"], row["seed"], row["completion_tokens"]) for row in rows(store)]
    store.discard(Ref("rollouts", "c" * 32))
    roll(Engine(), shard_rows=3)
    assert [(row["rollout_id"], row["seed"], row["completion_tokens"]) for row in rows(store)] == wanted


def test_without_a_tokenizer_prompts_are_messages_with_the_hint_in_them() -> None:
    row = {"problem_id": "a", "group_id": "a@h1", "n": 1, "hint_level": 1, "hint_text": "add"}
    plan = pa.Table.from_pylist([row], schema=PLAN.arrow)
    problems = pa.table({"problem_id": ["b", "a"], "question": ["2?", "1 + 1?"], "messages": pa.nulls(2)})
    (asked,) = Planned(plan, problems, None, RolloutConfig(), seed=0).asked(0, 1, KEY)
    assert asked.request.prompt_tokens == ()
    (turn,) = asked.request.messages
    assert turn["role"] == "user"
    assert turn["content"].startswith("1 + 1?")
    assert turn["content"].endswith("add")
    config = RolloutConfig(prompt=PromptConfig(system="sums", template="Q: {question} {hint}"), stop=("\n",))
    (asked,) = Planned(plan, problems, None, config, seed=0).asked(0, 1, KEY)
    said = [{"role": "system", "content": "sums"}, {"role": "user", "content": "Q: 1 + 1? add"}]
    assert (asked.request.messages, asked.request.stop) == (tuple(said), ("\n",))


@pytest.mark.slow
@given(
    sizes=st.lists(st.integers(1, 9), max_size=12),
    shard_rows=st.integers(1, 12),
)
def test_shards_are_whole_groups_in_order_and_no_larger_than_asked_unless_one_group_is(
    sizes: list[int], shard_rows: int
) -> None:
    rows = [{"problem_id": "a", "group_id": str(g), "n": n} for g, n in enumerate(sizes)]
    problems = pa.table({"problem_id": ["a"], "question": ["1?"], "messages": pa.nulls(1)})
    planned = Planned(pa.Table.from_pylist(rows, schema=PLAN.arrow), problems, None, RolloutConfig(), seed=0)
    shards = planned.shards(shard_rows)
    assert [group for start, stop in shards for group in range(start, stop)] == list(range(len(sizes)))
    for number, (start, stop) in enumerate(shards):
        assert stop - start == 1 or sum(sizes[start:stop]) <= shard_rows
        if number + 1 < len(shards):  # and none is closed before it is full
            assert sum(sizes[start : stop + 1]) > shard_rows


def test_a_long_plan_is_checked_to_its_end_before_anything_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradus.tasks.stages.rollout.groups.CHECKED_ROWS", 2)
    rows = [{"problem_id": "a", "group_id": str(g), "n": 1, "seed": g} for g in range(5)]
    problems = pa.table({"problem_id": ["a"], "question": ["1 + 2 ="], "messages": pa.nulls(1)})
    policy = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=256, seed=0)
    plan = pa.Table.from_pylist(rows, schema=PLAN.arrow)
    planned = Planned(plan, problems, policy.prompt_side, RolloutConfig(), seed=0)
    expected = tuple(prompt_tokens(policy.tokenizer, ["1 + 2 =\n"])[0])
    found = [(each.row["seed"], each.request.prompt_tokens) for each in planned.asked(1, 5, KEY)]
    assert found == [(g, expected) for g in range(1, 5)]
    for wrong, said in (
        ({"problem_id": "b"}, "names problem b"),
        ({"max_tokens": 255}, "does not fit"),
        ({"n": 0}, "n = 0"),
    ):
        bad = pa.Table.from_pylist([*rows[:4], {**rows[4], **wrong}], schema=PLAN.arrow)
        with pytest.raises(BadInputError, match=said):
            Planned(bad, problems, policy.prompt_side, RolloutConfig(), seed=0)


def test_a_row_of_a_wave_is_asked_in_its_own_words_under_its_own_name_and_its_rollouts_say_so() -> None:
    policy = new_policy(tiny_tokenizer(), width=16, layers=1, heads=2, max_positions=256, seed=0)
    own = {"messages": [{"role": "user", "content": "3 + 4 ="}], "plan_id": "a@r1h0.1", "wave": 2, "call": 0}
    rows = [
        {"problem_id": "a", "group_id": "a@r1h0", "n": 1, **own, "top_p": 0.5, "top_k": 7},
        {"problem_id": "a", "group_id": "a@r1h0", "n": 1, "plan_id": "a@r1h0.2", "wave": 2, "call": 1},
    ]
    plan = cast_to_schema(pa.Table.from_pylist(rows), PLAN)
    problems = pa.table({"problem_id": ["a"], "question": ["1 + 2 ="], "messages": pa.nulls(1)})
    told, asked = Planned(plan, problems, policy.prompt_side, RolloutConfig(top_p=0.9), seed=0).asked(0, 2, KEY)
    in_words, bare = (tuple(prompt_tokens(policy.tokenizer, [text])[0]) for text in ("3 + 4 =\n", "1 + 2 =\n"))
    assert (told.request.prompt_tokens, told.request.top_p, told.request.top_k) == (in_words, 0.5, 7)
    assert (asked.request.prompt_tokens, asked.request.top_p, asked.request.top_k) == (bare, 0.9, 0)
    assert [each.request.rollout_id[17:] for each in (told, asked)] == ["a@r1h0.1:0", "a@r1h0.2:0"]
    done = [Finished(index, (1,), (-0.5,), "stop") for index in range(2)]
    table = rollouts_table(
        list(zip((told, asked), done, strict=True)), engine="e", policy="p", tokenizer=policy.tokenizer, round_=1
    )
    named = table.select(["group_id", "plan_id", "wave", "call"]).to_pylist()
    assert [tuple(row.values()) for row in named] == [("a@r1h0", "a@r1h0.1", 2, 0), ("a@r1h0", "a@r1h0.2", 2, 1)]
    assert table["messages"].to_pylist() == [own["messages"], None]
