"""Errors as sentences: the file and what to do, never what Python calls them."""

import errno
import os
import re
from pathlib import Path

import pytest

from gradus.data.errors import GateError, UsageError, in_words, shortened
from gradus.data.files import replace_file


def raised(number: int, name: str | None = None, other: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), name, None, other)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EACCES, "there is no permission for /h/x; change its permissions, or set GRADUS_HOME to a folder"),
        (errno.EROFS, "/h/x is on a disk that can only be read; set GRADUS_HOME"),
        (errno.ENOSPC, "the disk is full: /h/x cannot be written; free some space"),
        (errno.EFBIG, "/h/x would be larger than this process may write; raise the limit"),
        (errno.ENOTDIR, "there can be no /h/x: a part of its path is a file"),
        (errno.EMFILE, "too many files are open: /h/x"),
        (errno.EIO, "the disk failed to read or write /h/x"),
        (errno.EINVAL, "the system refuses what is asked of /h/x; give an ordinary file"),
    ],
)
def test_what_the_system_refuses_names_the_file_and_what_to_do(number: int, said: str) -> None:
    assert str(in_words(raised(number, "/h/x"))).startswith(said)


def test_both_files_of_a_failed_renaming_are_named() -> None:
    assert in_words(raised(errno.EXDEV, "/a", "/b")).message == f"{os.strerror(errno.EXDEV)}: /a or /b"
    assert in_words(raised(errno.EACCES, "/a", "/b")).message == "there is no permission for /a or /b"


def test_a_file_that_cannot_be_replaced_is_named_and_not_the_temporary_one(tmp_path: Path) -> None:
    for path, said in (
        (tmp_path, f"{tmp_path} is a folder"),
        (tmp_path / "none" / "x", f"there is no {tmp_path}/none/x"),
    ):
        with pytest.raises(OSError, match=r"\[Errno") as error:
            replace_file(path, "")
        assert in_words(error.value).message.startswith(said)


def test_a_place_stands_for_a_file_that_is_not_named() -> None:
    assert in_words(raised(errno.ENOSPC), "/home").message == "the disk is full: /home cannot be written"
    assert in_words(OSError("[Errno 28] Error writing bytes to file")).message.startswith("the disk is full: a file")


def test_no_number_of_the_system_is_shown() -> None:
    for number in errno.errorcode:
        said = os.strerror(number)
        texts = f"[Errno {number}] {said}", f"no. Detail: [errno {number}] {said}", f"{said} (os error {number})"
        named = raised(number), raised(number, "/h/x")
        for error in (*named, *map(OSError, texts), *map(ValueError, texts)):
            assert not re.search(rf"errno|os error|\b{number}\b", in_words(error).message, re.IGNORECASE), error


def test_a_name_that_no_file_can_have_is_wrong_usage_and_shown_in_part(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="name too long") as error:
        (tmp_path / ("x" * 300)).read_text()
    found = in_words(error.value)
    assert isinstance(found, UsageError)
    assert len(found.message) < 200
    assert shortened("x" * 120) == "x" * 120


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("n"), "'n'"),
        (ValueError("no such thing\nand more"), "no such thing"),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full"), "database or disk is full"),
        (TypeError(), "something failed without saying why (TypeError)"),
        (ExceptionGroup("unhandled errors", [ExceptionGroup("more", [ValueError("7 is odd")])]), "7 is odd"),
        (MemoryError(), "there is not enough memory; use less at once, or a machine with more"),
        (GateError("too many", hint="raise it"), "too many; raise it"),
    ],
)
def test_other_errors_lose_the_name_of_their_type(error: Exception, said: str) -> None:
    assert str(in_words(error)) == said


def test_an_error_without_words_has_those_of_its_cause() -> None:
    with pytest.raises(RuntimeError) as found:
        raise RuntimeError from raised(errno.EACCES, "/a")
    assert in_words(found.value).message == "there is no permission for /a"
    found.value.__cause__ = None
    found.value.__suppress_context__ = True  # as `from None` does
    found.value.__context__ = ValueError("of another matter")
    assert in_words(found.value).message == "something failed without saying why (RuntimeError)"
