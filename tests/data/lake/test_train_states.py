"""The policies that a policy was made of."""

from pathlib import Path

import pytest

from gradus.data.lake.manifest import identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import lineage
from gradus.data.records import JsonObject


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def made(store: Store, number: int, *parents: Ref) -> Ref:
    """A checkpoint that an update made of another."""
    identity: JsonObject = {"stage": "update", "number": number}
    ref = Ref("checkpoints", identity_digest(identity))
    out = store.writer(ref)
    out.write_file("config.json", b"{}")
    out.commit(identity=identity, parents={"policy": [str(each) for each in parents]})
    return ref


def test_ages_count_updates_back_as_far_as_asked(store: Store) -> None:
    first = made(store, 1)
    second = made(store, 2, first)
    third = made(store, 3, second)
    assert lineage(store, third) == {third.digest: 0, second.digest: 1, first.digest: 2}
    assert lineage(store, third, 1) == {third.digest: 0, second.digest: 1}
    assert lineage(store, third, 0) == {third.digest: 0}


def test_it_ends_at_a_policy_that_is_not_in_the_lake(store: Store) -> None:
    gone = Ref("checkpoints", f"{9:032x}")
    taken_in = made(store, 1, gone)
    assert lineage(store, taken_in, 3) == {taken_in.digest: 0, gone.digest: 1}
