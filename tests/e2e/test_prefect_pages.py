"""What a person finds in Prefect's pages: arrows between stages, a log, and sentences where something failed."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

from tests.e2e.conftest import Program

Undisturbed = tuple[Program, dict[str, Any]]


def test_arrows_lead_from_the_stage_that_made_an_input(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    flow_run = program.launches(result["run"])[0]
    rows = program.prefect("select id, name, task_inputs from task_run where flow_run_id = ?", flow_run)
    names = {id_: name for id_, name, _ in rows}
    arrows = {
        (names[source["id"]], name) for _, name, inputs in rows for source in json.loads(inputs).get("wait_for", [])
    }
    # By hand, from the picture in the README.
    expected = {
        ("curate-1", "rollout-1"),
        ("rollout-1", "score-1"),
        ("score-1", "difficulty-1"),
        ("rollout-1", "difficulty-1"),
        ("profile-difficulty-0", "curate-1"),
        ("score-1", "update-1"),
        ("hint-0", "escalate1-wave-1"),
        ("update-1", "eval-rollout-1"),
        ("ingest-0", "curate-1"),
    }
    assert expected <= arrows
    assert not {arrow for arrow in arrows if arrow[0] == arrow[1]}


def test_the_log_has_a_line_for_every_stage_and_nothing_that_a_policy_wrote(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    flow_run = program.launches(result["run"])[0]
    logged = program.prefect("select name, level, message from log where flow_run_id = ? order by timestamp", flow_run)
    tasks = program.prefect("select name from task_run where flow_run_id = ?", flow_run)
    assert {(name, level) for name, level, _ in logged} == {("gradus", 20)}
    assert sorted(message.partition(":")[0] for _, _, message in logged) == sorted(name for (name,) in tasks)
    generated = sum(
        int(message.partition("tokens generated ")[2].partition(", ")[0].replace(",", ""))
        for _, _, message in logged
        if "tokens generated" in message
    )
    assert generated == result["tokens_generated"]


def test_a_round_has_a_page_with_its_figures(undisturbed: Undisturbed) -> None:
    program, result = undisturbed
    flow_run = program.launches(result["run"])[0]
    query = "select a.key, a.type, a.data, t.name from artifact a join task_run t on t.id = a.task_run_id"
    pages = program.prefect(f"{query} where a.flow_run_id = ? and a.type = 'markdown'", flow_run)
    ((key, _, data, task),) = pages
    assert (key, task) == ("round", "update-1")
    page = json.loads(data)
    scores = program.outputs(result["run"], "score")[2]  # after those of the first evaluation and the profile
    rewards = pq.read_table(scores).column("reward").to_pylist()
    assert f"| mean reward | {sum(rewards) / len(rewards):.4g} |" in page
    assert all(name in page for name in ("curate-1", "rollout-1", "escalate1-rollout-1", "update-1"))
    assert "eval-" not in page


def test_a_failed_stage_and_its_flow_end_in_the_sentence_of_the_terminal(
    undisturbed: Undisturbed, new_program: Callable[..., Program]
) -> None:
    calm, result = undisturbed
    (rollouts, *_) = calm.outputs(result["run"], "rollout")
    program = new_program()
    (program.home / "mine.py").write_text("def mine(rows):\n    raise RuntimeError('no such key')\n")
    reward = f"{program.home / 'mine.py'}:mine"
    code, _, err = program.run("score", "--rollouts", str(rollouts), "--reward", reward)
    assert code == 1
    said = next(line for line in err.splitlines() if line.startswith("gradus: ")).removeprefix("gradus: ")
    (flow_run,) = program.started()
    ((state, message),) = program.prefect("select state_type, state_name from flow_run where id = ?", flow_run)
    assert (state, message) == ("FAILED", "Failed")
    query = "select s.message from {0} r join {0}_state s on s.id = r.state_id where {1} = ?"
    of_flow = program.prefect(query.format("flow_run", "r.id"), flow_run)
    of_task = program.prefect(query.format("task_run", "r.flow_run_id"), flow_run)
    assert of_flow == of_task == [(said,)]
    logged = program.prefect("select level, message from log where flow_run_id = ?", flow_run)
    assert logged == [(40, said)]
