"""Rows from wherever they are: a file, a Hugging Face dataset (hub id or local folder), a reasoning-gym family."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data.errors import BadInputError, UsageError
from data.tabular import Located, Refused, read_rows

GYM = "reasoning-gym:"


def open_source(
    source: str,
    refused: Refused,
    *,
    split: str,
    subset: str,
    revision: str,
    streaming: bool,
    generator: Mapping[str, Any],
) -> Iterator[Located]:
    """The rows of a source with their places."""
    if source.startswith(GYM):
        return _gym(source.removeprefix(GYM), generator)
    if Path(source).is_file():
        return read_rows(Path(source), refused)
    return _hub(source, split=split, subset=subset, revision=revision, streaming=streaming)


def _gym(family: str, generator: Mapping[str, Any]) -> Iterator[Located]:
    try:
        import reasoning_gym  # noqa: PLC0415 - an extra
    except ImportError:
        raise UsageError("reasoning-gym is not installed", hint="pip install 'gradus[envs]'") from None
    if "seed" not in generator:
        raise UsageError(f"{GYM}{family} needs a seed", hint="give --set generator.seed=1")
    try:
        items = reasoning_gym.create_dataset(family, **generator)
    except (ValueError, TypeError, AssertionError) as error:
        raise UsageError(f"{GYM}{family} cannot be made: {error}", hint="see --set generator.KEY=VALUE") from None
    return (Located(f"{family} item {i + 1}", dict(item)) for i, item in enumerate(items))


def _hub(source: str, *, split: str, subset: str, revision: str, streaming: bool) -> Iterator[Located]:
    import datasets  # noqa: PLC0415 - slow, and needed for datasets alone

    local = Path(source).is_dir()
    if not local and not revision:
        raise UsageError(
            f"{source} is neither a file nor a folder; a dataset on the hub needs its revision",
            hint="give --set revision=<commit>",
        )
    try:
        rows = datasets.load_dataset(
            source, subset or None, split=split, revision=None if local else revision, streaming=streaming
        )
    except Exception as error:  # noqa: BLE001 - the library raises its own, the hub's and the network's errors
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise BadInputError(f"{source} cannot be loaded: {reason}", hint="give a local file or folder") from None
    return (Located(f"{source} [{split}] row {i + 1}", dict(row)) for i, row in enumerate(rows))
