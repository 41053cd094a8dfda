"""Rollouts of a run out to other systems and in again, and a checkpoint as transformers takes it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradus.data.errors import UsageError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.artifacts.resolve import resolve_artifact
from gradus.tasks.inspect.exchange.rollouts import read_incoming, uses_of, write_rollouts
from tests.e2e.conftest import Program

Trained = tuple[Program, dict[str, Any]]
SAME = ["rollout_id", "problem_id", "group_id", "sample", "round", "completion", "finish_reason", "hint_level"]


@pytest.fixture(scope="module")
def lake(undisturbed: Trained) -> tuple[Store, Path, str]:
    """The lake of the trained run, its folder of runs, and its name."""
    program, answer = undisturbed
    return Store(program.home / "lake"), program.home / "runs", answer["run"]


def trained_on(store: Store, runs: Path, run: str) -> tuple[pa.Table, dict[str, float]]:
    """The rollouts that the run's update learned from, in order of their ids, and their rewards."""
    uses = uses_of(store, runs, run)
    assert {use.purpose for use in uses} <= {"train", "escalate1"}
    rows = pa.concat_tables([store.read(use.rollouts, SAME) for use in uses]).sort_by("rollout_id")
    scores = [row for use in uses if use.scores for row in store.read(use.scores).to_pylist()]
    return rows, {row["rollout_id"]: row["reward"] for row in scores}


@pytest.mark.parametrize("name", ["verl", "trl", "trinity"])
def test_a_run_goes_out_and_comes_in_as_it_was(lake: tuple[Store, Path, str], tmp_path: Path, name: str) -> None:
    store, runs, run = lake
    rows, rewards = trained_on(store, runs, run)
    written = write_rollouts(store, uses_of(store, runs, run), name, tmp_path)
    assert written["rows"] == rows.num_rows > 0
    assert any("no tokens" in sentence for sentence in written["lost"])
    found, _, refused = read_incoming(tmp_path, name, {})
    assert refused == {}
    back = found["rollouts"].sort_by("rollout_id")
    for column in SAME:
        assert back.column(column).to_pylist() == rows.column(column).to_pylist(), column
    assert back.column("completion_tokens").null_count == back.num_rows
    judged = found["scores"].to_pylist()
    assert {row["rollout_id"]: row["reward"] for row in judged} == rewards
    questions = dict(zip(*(found["problems"].column(c).to_pylist() for c in ("problem_id", "question")), strict=True))
    asked = store.read(Ref.parse(store.manifest(uses_of(store, runs, run)[0].rollouts).parents["problems"][0]))
    gold = dict(zip(*(asked.column(c).to_pylist() for c in ("problem_id", "question")), strict=True))
    assert all(gold[key] in question for key, question in questions.items())


def test_parquet_keeps_every_column_and_is_taken_as_rollouts(lake: tuple[Store, Path, str], tmp_path: Path) -> None:
    store, runs, run = lake
    uses = uses_of(store, runs, run)
    written = write_rollouts(store, uses, "parquet", tmp_path / "out")
    assert written["lost"] == []
    table = pq.read_table(tmp_path / "out" / "rollouts.parquet")
    whole = pa.concat_tables([store.read(use.rollouts) for use in uses], promote_options="default")
    assert table.select(whole.column_names).equals(whole)
    assert {"question", "answer", "reward", "correct", "outcome"} <= set(table.column_names)
    elsewhere = Store(tmp_path / "lake")
    ref = resolve_artifact(elsewhere, str(tmp_path / "out" / "rollouts.parquet"), "rollouts")
    assert elsewhere.read(ref, ["logprobs"]).equals(whole.select(["logprobs"]))


def test_conversations_hold_the_question_and_the_completion(lake: tuple[Store, Path, str], tmp_path: Path) -> None:
    store, runs, run = lake
    written = write_rollouts(store, uses_of(store, runs, run), "openai", tmp_path)
    lines = (tmp_path / "chat.jsonl").read_text().splitlines()
    assert len(lines) == written["rows"]
    assert all('"role": "assistant"' in line for line in lines)


def test_imported_rollouts_are_scored_and_curated(
    undisturbed: Trained, new_program: Callable[..., Program], tmp_path: Path
) -> None:
    source, trained = undisturbed
    out = source.json("export", trained["run"], "--as", "verl", "--to", str(tmp_path / "dump"))
    assert out["files"] == ["1.jsonl"]
    program = new_program(warm=True)
    found = program.json("import", str(tmp_path / "dump"), "--from", "verl")
    assert (found["rows"], found["scored"], found["refused"]) == (out["rows"], out["rows"], {})
    store, runs = Store(program.home / "lake"), program.home / "runs"
    (use,) = uses_of(store, runs, found["rollouts"])
    assert (str(use.rollouts), str(use.scores)) == (found["rollouts"], found["scores"])
    scored = program.json("score", "--rollouts", found["rollouts"], "--reward", "numeric")
    with pytest.raises(UsageError, match="was scored 2 times"):
        uses_of(store, runs, found["rollouts"])
    theirs, ours = (store.read(Ref.parse(name)).sort_by("rollout_id") for name in (found["scores"], scored["artifact"]))
    assert ours.column("correct").to_pylist() == theirs.column("correct").to_pylist()
    plan = program.json(
        "curate", "--problems", found["problems"], "--difficulty", found["difficulty"], "--rank", "variance"
    )
    assert store.read(Ref.parse(plan["artifact"])).num_rows == store.read(Ref.parse(found["problems"])).num_rows
    rows = store.read(Ref.parse(found["rollouts"]), ["prompt_tokens", "completion_tokens", "logprobs", "policy"])
    assert {rows.column(name).null_count for name in rows.column_names} == {rows.num_rows}  # nothing to update from


def traces_of(store: Store, runs: Path, run: str, folder: Path) -> Path:
    """What a run's update learned from as open-instruct would have traced it; the folder of the policy that it was."""
    use = next(use for use in uses_of(store, runs, run) if use.purpose == "train")
    assert use.scores is not None
    rewards = {row["rollout_id"]: row["reward"] for row in store.read(use.scores).to_pylist()}
    rows = store.read(use.rollouts).to_pylist()
    groups = {name: number for number, name in enumerate(dict.fromkeys(row["group_id"] for row in rows))}
    lines = [
        {
            "step": 1,
            "sample_idx": index,
            "prompt_idx": groups[row["group_id"]],
            "prompt_tokens": row["prompt_tokens"],
            "response_tokens": row["completion_tokens"],
            "logprobs": row["logprobs"],
            "reward": rewards[row["rollout_id"]],
            "finish_reason": row["finish_reason"],
        }
        for index, row in enumerate(rows)
    ]
    (folder / "run1_rollouts_000000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return store.path(Ref.parse(store.manifest(use.rollouts).parents["policy"][0]))


def test_a_policy_learns_from_imported_traces_of_its_own(
    lake: tuple[Store, Path, str], new_program: Callable[..., Program], tmp_path: Path
) -> None:
    policy = traces_of(*lake, tmp_path)
    program = new_program(warm=True)
    imported = ("import", str(tmp_path), "--from", "open-instruct", "--policy")
    rollouts, scores = (program.json(*imported, str(policy))[name] for name in ("rollouts", "scores"))
    report = program.json("update", "--rollouts", rollouts, "--scores", scores, "--policy", str(policy))
    assert report["tokens_trained"] > 0
    code, _, err = program.run("import", str(tmp_path), "--from", "verl", "--policy", str(policy))
    assert (code, "hold no token ids with log-probs" in err) == (2, True)


@pytest.fixture(scope="module")
def exported(undisturbed: Trained, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of the trained policy as a model, and what the command said."""
    program, trained = undisturbed
    folder = tmp_path_factory.mktemp("exported") / "model"
    return folder, program.json("export", trained["policy"], "--to", str(folder))


def test_a_checkpoint_is_loaded_by_transformers_as_it_is(
    undisturbed: Trained, exported: tuple[Path, dict[str, Any]]
) -> None:
    (program, trained), (folder, found) = undisturbed, exported
    names = {path.name for path in folder.iterdir()}
    assert set(found["files"]) == names
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "README.md"} <= names
    assert not [name for name in names if name.endswith((".state", ".parquet")) or name == "_manifest.json"]
    model, there = (AutoModelForCausalLM.from_pretrained(path) for path in (folder, trained["out"]))
    tokens = AutoTokenizer.from_pretrained(folder)("12 + 5 =", return_tensors="pt").input_ids
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, there(tokens).logits)
    card = (folder / "README.md").read_text()
    assert f"{trained['after']['pass_at']['1']['value']:.4f}" in card
    assert "`train.jsonl`" in card
    assert trained["run"] in card
    rollouts = (program.home / "lake" / "rollouts").glob("*/part-*.parquet")
    texts = {
        text for path in rollouts for text in pq.read_table(path, columns=["completion"])["completion"].to_pylist()
    }
    shown = json.loads(re.findall(r"```json\n(.*?)\n```", card, re.DOTALL)[0])
    assert not [text for text in texts - {shown["completion"]} if len(text) > 12 and json.dumps(text)[1:-1] in card]
    code, _, err = program.run("export", trained["policy"], "--to", str(program.home))
    assert code == 2
    assert "is not empty" in err


def test_plain_transformers_and_the_card_reach_the_pass_rate_that_the_card_states(
    undisturbed: Trained, exported: tuple[Path, dict[str, Any]]
) -> None:
    (program, _), (folder, _) = undisturbed, exported
    card = (folder / "README.md").read_text()
    low, high = map(float, re.findall(r"pass@1 \| [0-9.]+ \| ([0-9.]+) to ([0-9.]+)", card)[0])
    example = json.loads(re.findall(r"```json\n(.*?)\n```", card, re.DOTALL)[0])
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder)
    (asked,) = example["messages"]
    prompt = tokenizer.apply_chat_template([asked], add_generation_prompt=True, tokenize=False)
    assert prompt == example["prompt"] == asked["content"] + "\n"
    problems = [json.loads(line) for line in (program.home / "heldout.jsonl").read_text().splitlines()]
    chats = [[{**asked, "content": row["question"]}] for row in problems for _ in range(4)]
    options = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "padding": True}
    inputs = tokenizer.apply_chat_template(chats, **options)
    torch.manual_seed(0)
    with torch.no_grad():
        output = model.generate(**inputs, tokenizer=tokenizer)
    assert output.shape[1] - inputs["input_ids"].shape[1] <= 80  # as the recipe says
    texts = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    golds = [row["answer"] for row in problems for _ in range(4)]
    right = [text.rpartition("#### ")[2] == gold for text, gold in zip(texts, golds, strict=True)]
    assert low <= sum(right) / len(right) <= high


def test_rollouts_of_one_s_own_are_measured_without_a_model_and_choose_problems(
    new_program: Callable[..., Program],
) -> None:
    program = new_program(warm=True)
    questions = [json.loads(line)["question"] for line in (program.home / "train.jsonl").read_text().splitlines()][:6]
    right = {question: min(at, 4) for at, question in enumerate(questions)}  # of 4: 0, 1, 2, 3, 4, 4
    rows = [{"question": q, "score": int(at < k), "sample": at} for q, k in right.items() for at in range(4)]
    (program.home / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted = ("import", "mine.jsonl", "--from", "table", "--problems", "train.jsonl")
    found = program.json(*wanted, "--map", "reward=score", "--out", "known.jsonl")
    assert (found["rows"], found["scored"], found["refused"]) == (24, 24, {})
    known = [json.loads(line) for line in (program.home / "known.jsonl").read_text().splitlines()]
    assert [(row["n"], row["k"]) for row in known] == [(4, k) for k in right.values()]
    chosen = ("curate", "--problems", "train.jsonl", "--filter", "zero_variance:unmeasured=drop")
    for difficulty in (found["difficulty"], "known.jsonl"):
        plan = program.json(*chosen, "--difficulty", difficulty)
        assert plan["problem_ids"] == [row["problem_id"] for row in known if 0 < row["k"] < 4]
    assert program.json("surface")["problems"] == 6
    rows = [{**row, "completion": "as right as before, in other words"} for row in rows]
    (program.home / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    again = program.json(*wanted, "--map", "reward=score")  # two artifacts with the same ids and the same verdicts
    pictured = program.json("surface")
    assert (pictured["policies"], pictured["rollouts"]) == (2, 48)
    judged = "select rollouts.artifact, count(*) from rollouts join scores using (rollout_id) group by all order by all"
    digests = sorted(each["rollouts"].removeprefix("rollouts/") for each in (found, again))
    assert program.json("sql", judged)["rows"] == [[digest, 24] for digest in digests]
    code, _, said = program.run(*wanted)
    assert code == 1
    assert "mine.jsonl line 1: no reward and no correct" in said
    assert "Traceback" not in said
