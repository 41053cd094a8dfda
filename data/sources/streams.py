"""Rows from wherever they are: a file, a Hugging Face dataset (hub id or local folder), a reasoning-gym family."""

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gradus.components.libraries import library_reason
from gradus.data.errors import BadInputError, UsageError, shortened
from gradus.data.records import JsonObject
from gradus.data.sources.reading import Located, Refused, read_rows

GYM = "reasoning-gym:"


def open_source(
    source: str, refused: Refused, *, split: str, subset: str, revision: str, streaming: bool, generator: JsonObject
) -> Iterator[Located]:
    """The rows of a source with their places."""
    refuse_source(source, revision, generator)
    if source.startswith(GYM):
        return _gym(source.removeprefix(GYM), generator)
    if Path(source).is_file():
        return read_rows(Path(source), refused)
    return _hub(source, split=split, subset=subset, revision=revision, streaming=streaming)


def refuse_source(source: str, revision: str, generator: JsonObject) -> None:
    """Raise UsageError if a source is neither there nor the name of something that can be fetched or generated."""
    if not source.strip():
        raise UsageError("the name of the source is empty", hint="give a file, a folder or a dataset")
    if source.startswith(GYM):
        if "seed" not in generator:
            raise UsageError(f"{shortened(source)} needs a seed", hint="give --set generator.seed=1")
    elif not Path(source).exists() and not revision:
        message = f"{shortened(source)} is neither a file nor a folder; a dataset on the hub needs its revision"
        raise UsageError(message, hint="give --set revision=<commit>")


def _gym(family: str, generator: JsonObject) -> Iterator[Located]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what it imports, to who develops that
            import reasoning_gym  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("reasoning-gym is not installed", hint="pip install 'gradus[envs]'") from None
    try:
        items = reasoning_gym.create_dataset(family, **generator)
    except Exception as error:  # noqa: BLE001 - each family checks its settings in its own way
        message = f"{GYM}{family} cannot be made{library_reason(error)}"
        raise UsageError(message, hint="see --set generator.KEY=VALUE") from None
    return _located(items, f"{GYM}{family}", f"{family} item")


def _hub(source: str, *, split: str, subset: str, revision: str, streaming: bool) -> Iterator[Located]:
    import datasets  # noqa: PLC0415 - slow, and needed for datasets alone

    pinned = None if Path(source).is_dir() else revision
    try:
        rows = datasets.load_dataset(source, subset or None, split=split, revision=pinned, streaming=streaming)
    except Exception as error:  # noqa: BLE001 - the library raises its own, the hub's and the network's errors
        hint = "give a local file or folder of rows"
        raise BadInputError(f"{source} cannot be loaded{library_reason(error)}", hint=hint) from None
    return _located(rows, source, f"{source} [{split}] row")


def _located(rows: Iterable[Any], source: str, place: str) -> Iterator[Located]:
    """Yield rows with their places; raise BadInputError if the library that makes them fails."""
    try:
        for index, row in enumerate(rows, start=1):
            yield Located(f"{place} {index}", dict(row))
    except Exception as error:  # noqa: BLE001 - the library's, the hub's and the network's errors
        raise BadInputError(f"{source} cannot be read{library_reason(error)}", hint="repeat the command") from None
