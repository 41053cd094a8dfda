"""Files that checkpoints lose, the bytes this frees and the cost of restoring them, counted by hand."""

import os

import pytest

from gradus.data.errors import CorruptArtifactError, StageError
from gradus.data.lake.manifest import POINTER, identity_digest
from gradus.data.lake.store import Ref, Store
from gradus.data.lake.train_states import (
    pointer,
    refuse_unrepeatable,
    state_files,
    state_identity,
    state_ref,
    weights_config,
)
from gradus.data.records import JsonObject
from gradus.data.runlock import run_lock
from gradus.tasks.runtime.pruning import planned_removals, remove

WEIGHTS, STATE = 1000, 2000


def checkpoint(store: Store, number: int, *, stage: str = "update", repeats: bool = True) -> Ref:
    """A checkpoint of 1,000 bytes of weights and 2,000 of train state beside it."""
    identity: JsonObject = {"stage": stage, "number": number}
    ref = Ref("checkpoints", identity_digest(identity))
    out = store.writer(ref)
    out.write_file("model.safetensors", bytes(WEIGHTS))
    out.write_file("config.json", b"{}")
    out.write_file(POINTER, pointer(ref, step=number, optimizer="adamw", threads=1, repeats=repeats))
    out.commit(identity=identity)
    state = store.writer(state_ref(ref))
    state.write_file("optimizer.safetensors", bytes(STATE))
    state.commit(identity=state_identity(ref), config=weights_config(store.manifest(ref).files))
    return ref


def test_weights_and_states_go_and_the_rest_stays(store: Store) -> None:
    made = {index: checkpoint(store, index) for index in (1, 2, 3, 4)}
    seconds = {ref: 10.0 * index for index, ref in made.items()}
    found = planned_removals(store, made, weights={2, 3, 4}, states={2, 4}, spared=frozenset(), seconds=seconds)
    assert [(r.round, bool(r.weights), bool(r.state), r.num_bytes) for r in found] == [
        (1, True, True, WEIGHTS + STATE),
        (3, False, True, STATE),
    ]
    # 1 again: its own update. 3 again: from 2, which kept all.
    assert [(r.num_updates, r.seconds) for r in found] == [(1, 10.0), (1, 30.0)]
    assert remove(store, found, pytest.fail) == 2 * STATE + WEIGHTS
    assert store.find(made[1]) is not None
    assert store.read_file(made[1], "config.json") == b"{}"
    assert not (store.path(made[1]) / "model.safetensors").exists()
    assert [state_files(store, ref) is not None for ref in made.values()] == [False, True, False, True]
    assert planned_removals(store, made, {2, 3, 4}, {2, 4}, frozenset()) == []


def test_a_checkpoint_that_is_being_restored_loses_nothing_until_that_has_ended(store: Store) -> None:
    ref = checkpoint(store, 1)
    weights, lock = store.path(ref) / "model.safetensors", run_lock(store.path(state_ref(ref)))
    said: list[str] = []

    def restored(text: str) -> None:
        said.append(text)
        assert weights.exists()
        lock.__exit__(None, None, None)

    with lock:
        remove(store, planned_removals(store, {1: ref}, set(), set(), frozenset()), restored)
    assert [text.split(" ")[:2] for text in said] == [["waiting", "for"]]
    assert not weights.exists()
    assert state_files(store, ref) is None
    assert not store.path(state_ref(ref)).exists()


def test_the_cost_counts_from_the_last_that_keeps_all_and_takes_the_usual_time_where_none_is_known(
    store: Store,
) -> None:
    made = {index: checkpoint(store, index) for index in (1, 2, 5)}
    seconds = {made[1]: 4.0, made[2]: 0.0, made[5]: 8.0}
    found = planned_removals(store, made, weights={1}, states={1}, spared=frozenset(), seconds=seconds)
    assert [(r.round, r.num_updates, r.seconds) for r in found] == [(2, 1, 6.0), (5, 2, 14.0)]


def test_what_does_not_repeat_itself_cannot_be_had_back(store: Store) -> None:
    made = {index: checkpoint(store, index, repeats=index != 2) for index in (1, 2, 3, 4)}
    found = planned_removals(store, made, weights={3}, states={3}, spared=frozenset())
    assert [(r.round, r.repeats) for r in found] == [(1, True), (2, False), (4, True)]
    with pytest.raises(StageError, match=r"cannot be computed again: .* was made on a GPU"):
        refuse_unrepeatable(store, made[4], [made[2], made[3]])
    refuse_unrepeatable(store, made[4], [made[4]])


def test_what_others_have_and_what_no_update_made_is_spared(store: Store) -> None:
    shared, tuned = checkpoint(store, 1), checkpoint(store, 2, stage="warmstart")
    assert planned_removals(store, {1: shared, 2: tuned}, set(), set(), frozenset({shared})) == []


def test_weights_that_anybody_removed_are_pruned_and_other_files_are_corrupt(store: Store) -> None:
    ref = checkpoint(store, 1)
    os.utime(store.path(ref), (0, 86400 * 365))
    assert store.pruned_on(ref) == ""
    (store.path(ref) / "model.safetensors").write_bytes(bytes(WEIGHTS - 1))
    with pytest.raises(CorruptArtifactError, match=r"model\.safetensors"):
        store.whole(ref)
    (store.path(ref) / "model.safetensors").unlink()
    os.utime(store.path(ref), (0, 86400 * 365))
    assert store.find(ref) is not None
    assert store.pruned(ref) == {"model.safetensors"}
    assert store.pruned_on(ref) == "1971-01-01"
    assert planned_removals(store, {1: ref}, set(), {1}, frozenset()) == []
    (store.path(ref) / "config.json").unlink()
    with pytest.raises(CorruptArtifactError, match=r"config\.json"):
        store.whole(ref)


def test_weights_of_what_no_update_made_are_corrupt_if_they_are_missing(store: Store) -> None:
    out = store.writer(Ref("checkpoints", identity_digest({"stage": "warmstart"})))
    out.write_file("model.safetensors", bytes(WEIGHTS))
    out.commit(identity={"stage": "warmstart"})
    (out.folder / "model.safetensors").unlink()
    assert store.find(out.ref) is None
    assert store.pruned(out.ref) == frozenset()
