"""Files of a training's state, of which every rank writes its share at the same time.

    written(files, folder, ranks)    # by all ranks together; one process alone writes all

The n-th file goes to rank n modulo their number, so names and bytes are those that one process writes. A rank has one
file in memory: it gathers the next one once the last is on the disk, and meanwhile others gather theirs.
"""

import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from gradus.data.errors import GradusError, error_class, in_words
from gradus.data.lake.manifest import FileEntry
from gradus.data.lake.whole_files import entry_of, whole_file
from gradus.models.training.parallel.ranks import Ranks
from gradus.models.training.tensor_files import Collect, Write


def written(files: Mapping[str, Collect], folder: Path, ranks: Ranks) -> list[FileEntry]:
    """Write files to a folder that all ranks see, each whole or not at all; return all of them, on every rank.

    A rank that cannot write takes part to the end, so that none waits for it; then all raise its error.
    """
    ranks.wait()  # rank 0 has made the folder
    writing: list[Future[FileEntry]] = []
    with ThreadPoolExecutor(max_workers=1) as writer:
        for index, (name, collect) in enumerate(files.items()):
            owner = index % ranks.num_ranks
            if owner == ranks.rank:
                wait(writing)
                # What is collected is bound to no name, so that it is freed once it is written.
                writing.append(writer.submit(_write, collect(owner), folder, name))
            else:
                collect(owner)
    return _agreed(writing, ranks)


def _write(write: Write | None, folder: Path, name: str) -> FileEntry:
    assert write is not None, f"{name} was not gathered on the rank that writes it"
    with whole_file(folder, name) as path:
        write(path)
    return entry_of(folder, name)


def _agreed(writing: list[Future[FileEntry]], ranks: Ranks) -> list[FileEntry]:
    """Return the files of all ranks, or raise the first error that one met."""
    error = next((raised for each in writing if (raised := each.exception()) is not None), None)
    if error is None:
        said = {"files": [each.result().model_dump() for each in writing]}
    else:
        words = in_words(error)
        said = {"error": [type(words).__name__, words.message, words.hint]}
    heard = [json.loads(content) for content in ranks.gathered(json.dumps(said).encode())]
    if error is not None:
        raise error
    for each in heard:
        if "error" in each:
            name, message, hint = each["error"]
            raise (error_class(name) or GradusError)(message, hint=hint)
    return [FileEntry.model_validate(entry) for each in heard for entry in each["files"]]
