"""Several processes that make the same artifact at the same moment: each has it, whole, whoever was first."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from gradus.data.errors import GradusError
from gradus.data.lake.store import Ref, Store
from gradus.data.runlock import held
from gradus.tasks.artifacts.resolve import taken

ROOT = Path(__file__).parents[2]
NUM_PROCESSES, NUM_TIMES = 3, 4
TOGETHER = """
import sys, time
from pathlib import Path
import pyarrow as pa
from gradus.data.lake.store import Store
from gradus.tasks.artifacts.resolve import taken

root, me, num_processes, num_times = Path(sys.argv[1]), *map(int, sys.argv[2:])
table = pa.table({"problem_id": ["p"], "question": ["1 + 1 ="], "answer": ["2"]})
until = time.monotonic() + 120
for number in range(num_times):
    (root / f"ready-{number}-{me}").touch()
    while len(list(root.glob(f"ready-{number}-*"))) < num_processes:
        assert time.monotonic() < until, "another process has ended"
        time.sleep(0.0005)
    store = Store(root / "lakes" / str(number))
    made = (store.adopt(root / "policy"), store.put("problems", table), taken(store, root / "gift", "scores"))
    for ref in made:
        store.verify(ref)
    print(*made, flush=True)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A policy of several files, and scores of another lake."""
    (tmp_path / "policy").mkdir()
    for number in range(6):
        (tmp_path / "policy" / f"file-{number}.json").write_text("{}" * 1000)
    scores = pa.table({"rollout_id": ["r"], "problem_id": ["p"], "reward": [1.0]})
    theirs = Store(tmp_path / "theirs")
    theirs.path(theirs.put("scores", scores)).rename(tmp_path / "gift")
    return tmp_path


def test_processes_that_put_adopt_and_take_the_same_at_once_all_have_it(place: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    numbers = [str(NUM_PROCESSES), str(NUM_TIMES)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", TOGETHER, str(place), str(index), *numbers],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(NUM_PROCESSES)
    ]
    try:
        ends = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [error.splitlines()[-1:] for _, error in ends] == [[]] * NUM_PROCESSES
    assert len({line for out, _ in ends for line in out.splitlines()}) == 1
    assert not list(place.glob("lakes/*/*/*/.*.tmp"))
    assert not list(place.glob("lakes/*/*/*/.receipts"))


def test_a_writer_beside_another_removes_nothing_of_it(tmp_path: Path) -> None:
    store, ref = Store(tmp_path), Ref("checkpoints", "ab" * 16)
    with store.writer(ref).writing("weights.safetensors") as temporary:
        temporary.write_bytes(b"half")
        store.writer(ref)
        assert temporary.exists()
    assert store.writer(ref).entries[0].bytes == 4


def test_what_a_killed_process_was_writing_is_removed_by_the_next_that_holds_the_lock(place: Path) -> None:
    code = f"""
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from gradus.data.lake.store import Store
import gradus.data.lake.writer as writer

def slow(source, target):
    Path(target).write_bytes(b"half")
    print("begun", flush=True)
    time.sleep(600)

writer.shutil.copyfile = slow
Store(Path({str(place / "lake")!r})).adopt(Path({str(place / "policy")!r}))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen([sys.executable, "-P", "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        assert len(list(place.glob("lake/*/*/.file-0.json.*.tmp"))) == 1
        process.kill()
    store = Store(place / "lake")
    began = time.monotonic()
    ref = store.adopt(place / "policy")
    assert time.monotonic() - began < 60
    store.verify(ref)
    assert not list(store.path(ref).glob(".*.tmp"))


def test_a_copy_that_fails_leaves_nothing_that_looks_whole(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(place / "lake")

    def full(source: Path, target: Path) -> None:
        del source
        target.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("gradus.data.lake.writer.shutil.copyfile", full)
        for make in (lambda: store.adopt(place / "policy"), lambda: taken(store, place / "gift", "scores")):
            with pytest.raises(GradusError, match="No space left"):
                make()
    assert not list(place.glob("lake/*/*"))


def test_a_file_that_changes_while_it_is_copied_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(place / "lake")
    monkeypatch.setattr("gradus.data.lake.writer.shutil.copyfile", lambda _source, target: target.write_bytes(b"other"))
    with pytest.raises(GradusError, match="was changed while it was copied"):
        store.adopt(place / "policy")
    assert not list(place.glob("lake/*/*"))


def test_one_that_finds_the_lock_taken_waits_and_has_what_the_other_made(place: Path) -> None:
    theirs, store = Store(place / "theirs"), Store(place / "lake")
    ref = theirs.adopt(place / "policy")
    files = {each.name: theirs.path(ref) / each.name for each in theirs.manifest(ref).files}
    with ThreadPoolExecutor() as pool:
        with held(store.path(ref)):  # another command makes it just now
            second = pool.submit(store.adopt, place / "policy")
            with pytest.raises(TimeoutError):
                second.result(timeout=0.6)
            store.writer(ref).commit_copy(theirs.manifest(ref), files)
            made = (store.path(ref) / "_manifest.json").stat().st_ino
        assert second.result(timeout=120) == ref
    assert (store.path(ref) / "_manifest.json").stat().st_ino == made
