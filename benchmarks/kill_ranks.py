"""Kill a rank of an update at random moments, repeat the command, and compare the end with that of an undisturbed run.

    python benchmarks/kill_ranks.py [--times 10] [--ranks 2] [--seed 0]

Prints a line for each: the rank, the moment, the sentence, and whether every file has the same bytes. It takes minutes,
so the tests hold two such kills (tests/tasks/stages/update/launch) and this is run by hand.
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from gradus.data.errors import StageError  # noqa: E402 - the checkout comes first
from gradus.data.lake.store import Ref  # noqa: E402
from gradus.data.lake.train_states import state_ref  # noqa: E402
from tests.tasks.stages.update.conftest import House  # noqa: E402
from tests.tasks.stages.update.launch.notes import Notes  # noqa: E402

STEPS = {"epochs": 6, "minibatch_groups": 1, "lr": 1e-3}


def kill_at(folder: Path, rank: int, after_s: float) -> None:
    """Kill a rank `after_s` seconds after its process started."""
    mail = Notes(folder)
    while True:
        for note in mail.new():
            if note["kind"] == "here" and note.get("rank") == rank:
                time.sleep(after_s)
                with contextlib.suppress(ProcessLookupError):  # it has done its work by then
                    os.kill(note["pid"], signal.SIGKILL)
                return
        time.sleep(0.01)


def same_bytes(house: House, one: str, other: str) -> bool:
    """Whether two checkpoints, and their train states, have the same tensors to the last bit."""
    pairs = [(Ref.parse(one), Ref.parse(other)), (state_ref(Ref.parse(one)), state_ref(Ref.parse(other)))]
    for mine, theirs in pairs:
        folders = house.store.path(mine), house.store.path(theirs)
        names = [{p.name for p in folder.glob("*.safetensors")} for folder in folders]
        if names[0] != names[1] or not names[0]:
            return False
        if any((folders[0] / name).read_bytes() != (folders[1] / name).read_bytes() for name in names[0]):
            return False
    return True


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("times", 10), ("ranks", 2), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as root:
        house = House(Path(root))
        rows = house.rows()
        inputs = {"rollouts": [house.put(rows)], "scores": [house.score(rows, house.rewards)], "policy": [house.policy]}
        config = {**STEPS, "launch": {"processes": given.ranks}}
        calm = house.job(inputs, **config)
        started = time.monotonic()
        house.run(calm)
        whole_s = time.monotonic() - started
        print(f"undisturbed: {whole_s:.0f} s", flush=True)
        for number in range(given.times):
            job = house.job(inputs, **config)
            folder = house.store.path(Ref.parse(job["output"])) / ".scratch" / "launch"
            shutil.rmtree(folder, ignore_errors=True)
            rank, after_s = rng.randrange(given.ranks), rng.uniform(0.0, whole_s)
            threading.Thread(target=kill_at, args=(folder, rank, after_s), daemon=True).start()
            sentence = "it was done before"
            try:
                house.run(job)
            except StageError as error:
                sentence = error.message
                house.run(job)
            same = same_bytes(house, job["output"], calm["output"])
            print(
                f"{number + 1}: rank {rank} after {after_s:.1f} s: {sentence}: {'same' if same else 'DIFFERENT'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
