"""Files that other systems' own writers made (dumps/README.md) become tables of the lake."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradus.data.errors import BadInputError
from gradus.data.lake.store import Store
from gradus.tasks.inspect.exchange.rollouts import read_incoming

DUMPS = Path(__file__).parent / "dumps"
POLICY = Path(__file__).parents[3] / "data" / "samples" / "policy"


Tables = dict[str, pa.Table]


def read(name: str, **columns: str) -> Tables:
    return read_incoming(DUMPS / name, name, columns, POLICY if name == "open-instruct" else None)[0]


def rows(found: Tables, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(found["rollouts"].column(name).to_pylist() for name in names), strict=True))


def scores(found: Tables) -> list[dict[str, Any]]:
    return found["scores"].to_pylist()


@pytest.mark.parametrize("name", ["verl", "trl", "trinity", "open-instruct", "art"])
def test_a_dump_is_stored_whole(name: str, tmp_path: Path) -> None:
    found, store = read(name), Store(tmp_path)
    for table, content in found.items():
        assert store.read(store.put(table, content)).num_rows == content.num_rows > 0
    problems = set(found["problems"].column("problem_id").to_pylist())
    assert set(found["rollouts"].column("problem_id").to_pylist()) == problems


def test_verls_steps_come_in_order_with_verdicts_and_parts() -> None:
    found = read("verl")
    assert rows(found, "round", "completion") == [
        (2, "12+5=17\n#### 17"), (2, "18"), (10, "12+5=17\n#### 17"), (10, "18")
    ]  # fmt: skip
    assert [(s["reward"], s["correct"], dict(s["components"])) for s in scores(found)[:2]] == [
        (1.0, True, {"format": 0.5}),
        (0.0, False, {"format": 0.0}),
    ]
    assert found["problems"].column("answer").to_pylist() == ["17"]
    assert len({group for (group,) in rows(found, "group_id")}) == 2


def test_trls_rewards_are_summed_or_one_of_them_is_chosen() -> None:
    found, num_files, _ = read_incoming(DUMPS / "trl", "trl", {})
    assert found["rollouts"].num_rows == 8
    assert num_files == 2
    assert {s["reward"] for s in scores(found)} == {0.25}
    assert all(dict(s["components"]) == {"right": 0.0, "short": 0.25} for s in scores(found))
    assert {s["reward"] for s in scores(read("trl", reward="right"))} == {0.0}
    groups = [group for (group,) in rows(found, "group_id")]
    assert sorted(groups.count(group) for group in set(groups)) == [2, 2, 2, 2]


def test_trinitys_experiences_of_one_and_several_turns_and_no_preference_pairs() -> None:
    found, _, refused = read_incoming(DUMPS / "trinity", "trinity", {})
    assert rows(found, "group_id", "completion", "finish_reason", "round") == [
        ("4/7", "#### 17", None, 4), ("4/7", "#### 1", "length", 4), ("4/8", "#### 2", None, 4)
    ]  # fmt: skip
    assert [s["reward"] for s in scores(found)] == [1.0, 0.0, 0.5]
    assert refused == {"a preference pair, not a rollout": 1}
    assert found["problems"].column("question").to_pylist() == ["12 + 5 =", "Add.\n3 - 1 ="]


def test_a_threshold_makes_verdicts_of_rewards_where_a_file_has_none() -> None:
    for name, wanted in (("trl", [False] * 8), ("trinity", [True, False, True]), ("verl", [True, False] * 2)):
        assert [s["correct"] is None for s in scores(read(name))] == [name != "verl"] * len(wanted)
        found = read_incoming(DUMPS / name, name, {}, correct_at=0.5)[0]
        assert [s["correct"] for s in scores(found)] == wanted
        assert [s["outcome"] for s in scores(found)] == ["correct" if right else "wrong" for right in wanted]


def test_open_instructs_tokens_become_texts_and_stay() -> None:
    found = read("open-instruct")
    assert rows(found, "completion", "finish_reason") == [
        ("#### 17", "stop"), ("#### 18", "stop"), ("#### 3", "length"), ("#### 2", "stop")
    ]  # fmt: skip
    lines = (DUMPS / "open-instruct" / "run1_rollouts_000000.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    assert rows(found, "prompt_tokens", "completion_tokens", "logprobs") == [
        (each["prompt_tokens"], each["response_tokens"], each["logprobs"]) for each in written
    ]
    assert found["problems"].column("question").to_pylist() == ["12 + 5 =", "3 - 1 ="]
    assert found["problems"].column("answer").to_pylist() == ["17", "2"]


def test_a_record_of_open_instructs_without_tokens_is_refused_by_the_name_of_their_field(tmp_path: Path) -> None:
    good = json.loads((DUMPS / "open-instruct" / "run1_rollouts_000000.jsonl").read_text().splitlines()[0])
    odd = [{**good, "prompt_tokens": None}, {**good, "response_tokens": None}, {**good, "response_tokens": [-1]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (*odd, good)))
    found, _, refused = read_incoming(tmp_path, "open-instruct", {}, POLICY)
    assert found["rollouts"].num_rows == 1
    assert refused == {
        "no prompt_tokens": 1, "no response_tokens": 1, "response_tokens is not a list of token ids": 1
    }  # fmt: skip


def test_arts_trajectories_of_each_step_have_groups_of_their_own() -> None:
    found = read("art")
    assert rows(found, "round", "completion", "sample") == [
        (step, text, sample) for step in (1, 2) for text, sample in (("#### 17", 0), ("#### 1", 1), ("#### 2", 0))
    ]
    assert len({group for (group,) in rows(found, "group_id")}) == 4
    assert [s["reward"] for s in scores(found)] == [1.0, 0.0, 0.5] * 2


def test_arts_second_version_is_read_from_its_json(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "1+1="},
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "2"}},
    ]
    written = [
        {
            "format_version": 2, "group_index": 0, "trajectory_index": 0, "reward": 1.0, "messages": None,
            "group_json": "{}", "trajectory_json": json.dumps({"messages_and_choices": turns, "reward": 1.0}),
        },
        {"format_version": 2, "group_index": 1, "group_json": "{}"},
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(written), tmp_path / "0007.parquet")
    found, _, refused = read_incoming(tmp_path, "art", {})
    assert rows(found, "question", "completion", "round") == [("1+1=", "2", 7)]
    assert refused == {"a group without trajectories": 1}


def test_a_dump_of_another_system_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"no row can be read as a rollout of verl: .* no input; is --from right"):
        read_incoming(DUMPS / "trinity" / "experiences.jsonl", "verl", {})
    with pytest.raises(BadInputError, match=r"has no \.parquet file"):
        read_incoming(tmp_path, "trl", {})
