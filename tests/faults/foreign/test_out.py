"""Folders that results are copied to: what Gradus did not write there stays."""

import json
import os

import pytest

from gradus.data.errors import GradusError
from gradus.data.lake.store import Ref, Store
from gradus.tasks.artifacts.resolve import export
from gradus.tasks.preflight.checks import SAMPLES
from tests.faults.foreign.gifts import CANARY, ROWS, Place, sealed


class TestOut:
    """Where a result is copied to, a file is removed or replaced only if Gradus wrote it there."""

    @pytest.fixture
    def store(self, place: Place) -> Store:
        return Store(place.home / "lake")

    @pytest.fixture
    def first(self, store: Store) -> Ref:
        writer = store.writer(Ref("rollouts", "aa" * 16))
        writer.write_table(ROWS)
        writer.write_table(ROWS.set_column(0, "rollout_id", [["s"]]), 1)
        writer.commit()
        return writer.ref

    @pytest.fixture
    def second(self, store: Store) -> Ref:
        return store.put("rollouts", ROWS.set_column(0, "rollout_id", [["t"]]))

    def test_the_next_result_takes_the_place_of_the_one_before(
        self, store: Store, first: Ref, second: Ref, place: Place
    ) -> None:
        out = place.root / "out"
        out.mkdir()
        (out / "mine.txt").write_text("mine")
        export(store, first, out)
        assert {path.name for path in out.iterdir()} == {
            "mine.txt", "_manifest.json", "part-00000.parquet", "part-00001.parquet"
        }  # fmt: skip
        export(store, second, out)
        assert {path.name for path in out.iterdir()} == {"mine.txt", "_manifest.json", "part-00000.parquet"}
        assert (out / "part-00000.parquet").read_bytes() == store.files(second)[0].read_bytes()
        (out / "_manifest.json").unlink()  # killed before the manifest was written
        export(store, second, out)
        assert (out / "_manifest.json").exists()

    @pytest.mark.parametrize("what", ["named by a manifest", "of the user's", "changed", "linked", "linked folder"])
    def test_what_gradus_did_not_write_stays(
        self, store: Store, first: Ref, second: Ref, place: Place, what: str
    ) -> None:
        out, mine = place.root / "out", place.root / "out" / "part-00001.parquet"
        out.mkdir()
        if what == "named by a manifest":
            body = json.loads((store.path(first) / "_manifest.json").read_bytes())
            body["files"][1]["name"] = "thesis.tex"
            mine = out / "thesis.tex"
            (out / "_manifest.json").write_bytes(sealed(body))
        elif what == "of the user's":
            first, second, mine = second, first, out / "part-00000.parquet"
        else:
            export(store, first, out)
        if what == "linked":
            mine.unlink()
            mine.symlink_to(place.canary)
        elif what == "linked folder":
            body = json.loads((out / "_manifest.json").read_bytes())
            body["files"].append({**body["files"][0], "name": "ema/canary"})
            (out / "_manifest.json").write_bytes(sealed(body))
            (out / "ema").symlink_to(place.root)
        else:
            mine.write_bytes(CANARY)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        with pytest.raises(GradusError, match=r"name another folder|itself there"):
            export(store, second, out)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
        assert place.canary.read_bytes() == CANARY

    def test_a_folder_of_the_users_below_a_checkpoint_stays(self, store: Store, place: Place) -> None:
        ref, out = store.adopt(SAMPLES / "policy"), place.root / "out"
        (out / "train_state").mkdir(parents=True)
        (out / "train_state" / "mine.txt").write_text("mine")
        export(store, ref, out)
        assert (out / "train_state" / "mine.txt").read_text() == "mine"
        linked = place.root / "linked"
        linked.mkdir()
        (linked / "train_state").symlink_to(place.root)
        with pytest.raises(GradusError, match="is no folder of Gradus's"):
            export(store, ref, linked)

    def test_a_hard_link_to_a_file_of_the_users_is_replaced_not_written_through(
        self, store: Store, first: Ref, second: Ref, place: Place
    ) -> None:
        out, mine = place.root / "out", place.root / "mine.parquet"
        export(store, first, out)
        os.link(out / "part-00000.parquet", mine)
        before = mine.read_bytes()
        export(store, second, out)
        assert mine.read_bytes() == before

    @pytest.mark.parametrize("name", ["out.parquet", "out.jsonl"])
    def test_a_symbolic_link_where_a_file_is_to_be_is_replaced_not_written_through(
        self, store: Store, second: Ref, place: Place, name: str
    ) -> None:
        out = place.root / name
        out.symlink_to(place.canary)
        export(store, second, out)
        assert place.canary.read_bytes() == CANARY
        assert out.is_file()
        assert not out.is_symlink()
