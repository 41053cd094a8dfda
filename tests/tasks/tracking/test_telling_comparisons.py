"""What MLflow is told of a comparison, read back from its database and its folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradus.tasks.tracking.client import STATE, tracking_uri
from gradus.tasks.tracking.facts import COMPARISON, COMPARISON_PICTURE, DIFFERENCES_TABLE, METHODS_TABLE

NewRun = Callable[[str], Any]


def test_a_comparison_is_a_run_with_its_tables_and_picture_that_links_to_its_trainings(new_run: NewRun) -> None:
    import mlflow

    trained = new_run("trained-1")
    trained.start()
    trained.journal.run_finished(status="finished")
    trained.drain()
    ((training,),) = trained.ask("select run_uuid from runs where run_uuid in mine")
    run = new_run("compare-1")
    methods = {"tiny [lr](http://x)": ["trained-1", "untold-1"]}
    run.start(verb="compare", params={"methods": methods, "budget": "rounds=1"}, changed=None)
    (run.folder / COMPARISON).write_text(json.dumps({"methods": [{"runs": ["trained-1", "untold-1"]}]}))
    (run.folder / COMPARISON_PICTURE).write_bytes(b"a picture")
    for name in (METHODS_TABLE, DIFFERENCES_TABLE):
        (run.folder / name).write_text('{"columns": ["method"], "data": [["tiny"]]}')
    run.journal.run_finished(status="finished")
    run.drain()
    uri, run_id, experiment = run.ask("select artifact_uri, run_uuid, experiment_id from runs where run_uuid in mine")[
        0
    ]
    folder = Path(uri.removeprefix("file://"))
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {COMPARISON, COMPARISON_PICTURE, METHODS_TABLE, DIFFERENCES_TABLE} <= first.keys()
    ((note,),) = run.ask("select value from tags where key = 'mlflow.note.content' and run_uuid in mine")
    assert f"- Training [trained-1](#/experiments/{experiment}/runs/{training})\n- `untold-1`\n" in note
    assert "`compare` of tiny \\[lr\\](http://x)" in note
    mlflow.set_tracking_uri(tracking_uri(run.home))
    loaded = mlflow.MlflowClient().load_table(str(experiment), METHODS_TABLE, run_ids=[run_id])
    assert loaded.to_dict("records") == [{"method": "tiny"}]
    (run.folder / STATE).unlink()
    run.drain()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    assert len(run.told()["runs"]) == 1
