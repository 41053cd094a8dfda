"""Rows that continue others in an update: the place of a parent, tokens that nobody sampled."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.tasks.stages.update.conftest import ROW_TYPES, House

SPANS = pa.list_(
    pa.struct(
        [
            ("start", pa.int32()),
            ("end", pa.int32()),
            ("role", pa.string()),
            ("source", pa.string()),
            ("trained", pa.bool_()),
        ]
    )
)


def continued(house: House, *, judged: bool) -> tuple[dict[str, object], list[str]]:
    """Report and rows of an update in which b:1 continues b:0 from its first token, after one inserted."""
    rows = house.rows()
    parent, child = rows[4], rows[5]
    whole = house.rows()[5]["completion_tokens"]
    spans = [
        {"start": 0, "end": 1, "role": None, "source": "inserted", "trained": False},
        {"start": 1, "end": len(whole), "role": None, "source": "sampled", "trained": True},
    ]
    child["logprobs"] = [None, *child["logprobs"][1:]]
    table = pa.Table.from_pylist(rows, schema=ROW_TYPES)
    more = {
        "spans": (SPANS, spans),
        "parent": (pa.string(), parent["rollout_id"]),
        "replaces": (pa.bool_(), True),
    }
    for name, (kind, value) in more.items():
        values = [value if row is child else None for row in rows]
        table = table.append_column(name, pa.array(values, kind))
    rewards = [*house.rewards]
    rewards[5] = 1.0 if judged else None
    inputs = {
        "rollouts": [house.store.put("rollouts", table)],
        "scores": [house.score(rows, rewards)],
        "policy": [house.policy],
    }
    folder, report = house.run(house.job(inputs, minibatch_groups=0))
    learned = pq.read_table(folder / "rows.parquet").column("rollout_id").to_pylist()
    return dict(report), learned


def test_a_judged_row_takes_its_parents_place_and_inserted_tokens_are_neither_learned_nor_compared(
    house: House,
) -> None:
    report, learned = continued(house, judged=True)
    summary, metrics = report["summary"], report["metrics"]
    assert isinstance(summary, dict)
    assert isinstance(metrics, dict)
    assert summary["replaced_parents"] == 1
    assert "b@r1h0:0" not in learned
    assert len(learned) == 11
    assert metrics["mismatch/masked_frac"] == 0.0  # what nobody sampled is no gap in the sampler's log-probs
    assert metrics["mismatch/logp_diff_mean"] == pytest.approx(0.0, abs=1e-5)


def test_a_row_that_was_not_judged_takes_nobodys_place(house: House) -> None:
    report, learned = continued(house, judged=False)
    assert isinstance(report["summary"], dict)
    assert "replaced_parents" not in report["summary"]
    assert "b@r1h0:0" in learned
    assert len(learned) == 11
