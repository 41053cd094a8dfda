"""A stage that was reused, though its inputs were made anew, belongs to the inputs that it was given."""

from pathlib import Path

import pyarrow as pa

from gradus.data.lake.manifest import identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.tasks.inspect.reasons import explain
from gradus.tasks.runs.journal import Journal
from gradus.tasks.runs.lineage import Lineage, Run
from gradus.tasks.runs.run_settings import write_settings


def scores(store: Store, verifier: str) -> Ref:
    row = {"rollout_id": "a:0", "problem_id": "a", "reward": 1.0, "verifier": verifier}
    return store.put("scores", pa.Table.from_pylist([row]))


def test_the_reason_and_the_lineage_name_what_the_run_gave(tmp_path: Path) -> None:
    store = Store(tmp_path / "lake")
    before, now = scores(store, "mine@1"), scores(store, "mine@2")
    writer = store.writer(Ref("checkpoints", identity_digest({"stage": "update"})))
    writer.write_file("config.json", b"{}")
    writer.commit(identity={"stage": "update"}, parents={"scores": [str(before)]})
    runs: list[Run] = []
    for name, given in (("first", before), ("second", now)):
        journal = Journal(tmp_path / "runs" / name)
        write_settings(journal.folder, {"verb": "train"})
        journal.run_started({})
        journal.stage_reused(
            stage="update", round=1, purpose="train", output=str(writer.ref), inputs={"scores": [str(given)]}
        )
        journal.run_finished(status="finished")
        runs.append(Run(journal.folder))
    whys = [explain(store, [], run.folder, lambda key: True)[0]["why"] for run in runs]
    assert whys[0] == "the same settings, inputs and code as in an earlier start of this run"
    assert whys[1].endswith("it reads nothing that differs in its scores")
    assert Lineage(store, runs[1:], whole_lake=False).artifacts("scores") == [now]
    assert Lineage(store, runs, whole_lake=False).artifacts("scores") == sorted([before, now], key=str)
