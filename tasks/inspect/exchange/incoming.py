"""Rollouts that another system wrote, read into tables: files of a folder in order, unusable rows counted."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
from tokenizers import Tokenizer

from gradus.data.errors import BadInputError, UsageError, shortened
from gradus.data.exchange import FORMATS, Format
from gradus.data.exchange.row import Exchanged
from gradus.data.exchange.tables import tables_of
from gradus.data.nearest import did_you_mean
from gradus.data.sources.formats import UnusableRowError
from gradus.data.sources.reading import Refused, read_rows
from gradus.data.sources.tabular import Renamed, refuse_fields
from gradus.tasks.inspect.exchange.own_rows import OWN_HINT, NoneRefused, ProblemNames, own_hint
from gradus.tasks.inspect.token_pieces import texts_of, tokenizer_of

System = Literal["verl", "trl", "trinity", "open-instruct", "art", "table"]
"""The systems whose files are read; table is a user's own."""
_METADATA = "_metadata.jsonl"
"""End of the name of open-instruct's file about its run, which lies beside its shards."""
_NUMBER = re.compile(r"(\d+)")


def reader(name: str) -> Format:
    """Return the format of a system; UsageError if its files are not read."""
    known: tuple[str, ...] = get_args(System)
    if name not in known:
        listed = f"give one of: {', '.join(known)}"
        raise UsageError(f"--from {shortened(name)}: there is no such format", hint=did_you_mean(name, known, listed))
    return FORMATS[name]


def check_source(
    path: Path,
    name: str,
    tokenizer: Path | None,
    policy: str | None,
    columns: Mapping[str, str] | None = None,
    problems: str | None = None,
) -> None:
    """Raise UsageError if there is nothing to read, tokens without a tokenizer, or a policy beside texts.

    Also for problems beside rollouts of another system, which have prompts instead of questions.
    """
    found = reader(name)
    if problems is not None and not found.strict:
        raise UsageError("--problems goes with --from table", hint="leave it out")
    refuse_fields(columns or {}, found.columns, f"a file of {name}")
    if not path.exists():
        raise UsageError(f"there is no file or folder {shortened(str(path))}", hint="check the name")
    if not found.texts and tokenizer is None and policy is None:
        raise UsageError(f"files of {name} hold token ids, no texts", hint="give --tokenizer FOLDER of the model")
    if found.texts and policy is not None:
        raise UsageError(
            f"files of {name} hold no token ids with log-probs: no policy can learn from them",
            hint="leave --policy out",
        )


def read_incoming(
    path: Path,
    name: str,
    columns: Mapping[str, str],
    tokenizer: Path | None = None,
    correct_at: float | None = None,
    problems: pa.Table | None = None,
) -> tuple[dict[str, pa.Table], int, dict[str, int]]:
    """Read a file, or all files of a folder; return the tables, the number of files and refused rows by reason.

    `columns` renames what a row has, theirs by the name it should have. A row without a verdict is correct if its
    reward is at least `correct_at`; if a user's own table has no verdict, and all its rewards are 0 or 1, that is 1.
    A user's own rows name one of `problems`, if they are given, by id or else by question. Raise BadInputError if there
    is no file, or no row that can be used, and for the first unusable row of a user's own file.
    """
    found = reader(name)
    refuse_fields(columns, found.columns, f"a file of {name}")
    files, renamed = _files(path, found.suffix), Renamed(columns, str(path))
    refused = NoneRefused() if found.strict else Refused()
    names = ProblemNames(problems) if found.strict else None
    rows = [row for file in files for row in _rows(file, found, renamed, refused, names)]
    renamed.refuse_unknown()
    if not rows:
        text = refused.examples[0] if refused.examples else f"{path} holds no rows"
        hint = OWN_HINT if found.strict else "is --from right?"
        raise BadInputError(f"no row can be read as a rollout of {name}: {text}", hint=hint)
    if not found.texts and tokenizer is not None:
        rows = _with_texts(rows, tokenizer_of(tokenizer))
    if found.strict and correct_at is None and all(row.correct is None and row.reward in (0, 1) for row in rows):
        correct_at = 1.0
    return tables_of(rows, name, correct_at), len(files), dict(refused.reasons)


def _files(path: Path, suffix: str) -> list[Path]:
    """Return the files of a folder and those below it in the order of the numbers in their names; a file as it is."""
    if path.is_file():
        return [path]
    files = [file for file in path.rglob(f"*{suffix}") if file.is_file() and not file.name.endswith(_METADATA)]
    if link := next(filter(Path.is_symlink, files), None):
        raise BadInputError(f"{shortened(str(link))} is a link", hint="put the file itself there")
    if not files:
        raise BadInputError(f"{path} has no {suffix} file", hint="give the folder that the other system wrote to")
    return sorted(files, key=_in_order)


def _in_order(path: Path) -> list[tuple[int, str]]:
    """Return a key by which 2.jsonl comes before 10.jsonl."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in _NUMBER.split(str(path))]


def _rows(
    file: Path, found: Format, renamed: Renamed, refused: Refused, names: ProblemNames | None
) -> Iterator[Exchanged]:
    for located in read_rows(file, refused):
        try:
            row = found.read(renamed(located.row))
            row = replace(row, problem_id=names.of(row, located.place)) if names else row
        except UnusableRowError as reason:
            if found.strict:
                raise BadInputError(f"{located.place}: {reason}", hint=own_hint(located.row)) from None
            refused.add(str(reason), located.place)
        else:
            yield _of_file(row, file) if found.step_in_name else row


def _of_file(row: Exchanged, file: Path) -> Exchanged:
    """Return a row with the step that the name of its file says, and a group of that file alone."""
    numbers = [int(part) for part in _NUMBER.findall(file.stem) if len(part) < 10]
    return replace(row, round=numbers[-1] if numbers else 0, group_id=f"{file.stem}/{row.group_id}")


def _with_texts(rows: list[Exchanged], tokenizer: Tokenizer) -> list[Exchanged]:
    prompts = texts_of(tokenizer, [row.prompt_tokens or () for row in rows])
    completions = texts_of(tokenizer, [row.completion_tokens or () for row in rows])
    both = zip(rows, prompts, completions, strict=True)
    return [replace(row, prompt=prompt, completion=completion) for row, prompt, completion in both]
