"""A run is one row of MLflow's however many commands it took, and hears of every event of its journal."""

from collections.abc import Callable
from typing import Any, get_args

import pytest

from gradus.tasks.runs import records
from gradus.tasks.runs.journal import read_events
from gradus.tasks.tracking.client import status

Run = Any
NewRun = Callable[[str], Run]
STAGES = [("update-1", "FINISHED"), ("score-2", "FAILED"), ("update-2", "FINISHED")]
NOTE = """select value from tags join runs using (run_uuid)
    where name = 'continued' and key = 'mlflow.note.content' and run_uuid in mine"""


@pytest.mark.slow
def test_every_kind_of_event_that_a_journal_writes_is_told(new_run: NewRun) -> None:
    run = new_run("every-kind")
    run.start()
    ref = run.update(1)
    run.journal.stage_reused(stage="update", round=2, purpose="train", output=str(ref))
    run.journal.model_alias("policy", "newest", str(ref))
    run.journal.pruned([str(ref)], 123)
    counts = {"planned": 3, "kept": 2, "again": 1, "lost": 0}
    run.journal.resumed({"prompts": counts, "rollouts": counts})
    run.journal.run_finished(status="finished")
    written = {event["event"] for event in read_events(run.folder)}
    assert written == {get_args(kind.__annotations__["event"])[0] for kind in get_args(records.Event)}
    run.drain()
    assert status(run.folder).refused == 0
    tagged = "select tag_value from logged_model_tags t join logged_models l using (model_id) "
    assert run.ask(f"{tagged} where tag_key = 'gradus.pruned' and l.source_run_id in mine")
    account = run.ask("select value from tags where key = 'gradus.resumed' and run_uuid in mine")
    words = "2 kept, 1 sampled again, 0 lost"
    assert account == [(f"resumed: 3 prompts, {words} (3 rollouts, {words})",)]


def test_a_training_is_one_row_however_many_commands_it_took(new_run: NewRun) -> None:
    run = new_run("continued")
    run.start()
    first = run.update(1)
    run.stage("score", 2, {"metrics": {"reward/mean": 0.5}}, status="failed", error="the judge is down")
    run.journal.run_finished(status="failed", error="the judge is down")
    run.drain()
    recipe = {"recipe": {"seed": 7, "rounds": 3, "update": {"lr": 0.0001}}}  # `rounds` is new, `long` is gone
    run.start(params=recipe)
    run.journal.stage_reused(stage="update", round=1, purpose="train", output=str(first))
    second = run.update(2)
    run.journal.run_finished(status="finished")
    run.drain()
    noted = run.ask(NOTE)[0][0]
    assert "Finished after 2 rounds" in noted
    assert "(stages: 2 ran, 0 reused, 1 failed)" in noted
    for _ in range(2):
        run.start(params=recipe)
        for round_, ref in enumerate((first, second), start=1):
            run.journal.stage_reused(stage="update", round=round_, purpose="train", output=str(ref))
        run.journal.run_finished(status="finished")
        run.drain()
    rows = run.ask("select name, status from runs where run_uuid in mine order by start_time")
    assert rows == [("continued", "FINISHED"), *[(f"{name}", state) for name, state in STAGES]]
    curve = (
        "select step, value from metrics join runs using (run_uuid) where name = 'continued' and key = '3 policy/loss'"
    )
    assert run.ask(f"{curve} and run_uuid in mine order by 1") == [(1, 0.1875), (2, 0.1875)]
    assert run.ask(NOTE)[0][0].startswith(noted)
    assert "2 later commands found everything computed, the last on " in run.ask(NOTE)[0][0]
    assert not run.ask("select value from tags join runs using (run_uuid) where name = 'continued' and "
                       "key = 'gradus.error' and run_uuid in mine")  # fmt: skip
    from gradus.tasks.tracking.reporter import forget

    assert forget(run.folder) == 4
    assert run.ask("select distinct lifecycle_stage from runs where run_uuid in mine") == [("deleted",)]
