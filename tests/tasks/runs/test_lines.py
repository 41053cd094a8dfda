"""Lines with check values: what a reader finds, what it leaves alone, and what lines of before are."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradus.data.errors import CorruptArtifactError
from gradus.data.runlock import run_lock
from gradus.tasks.runs.journal import EVENTS, Journal, append_line, mend, read_events, read_lines
from gradus.tasks.runs.run_settings import RUN, read_settings
from gradus.tasks.runs.run_settings import write_settings as write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Four lines, written by two commands."""
    path = tmp_path / EVENTS
    append_line(path, b'{"n": 0}', durable=False)
    append_line(path, b'{"n": 1}', durable=False)
    append_line(path, b'{"n": 2}', durable=True)
    append_line(path, b'{"n": 3}', durable=True)
    return path


def numbers(path: Path, offset: int = 0) -> list[object]:
    return [row["n"] for row, _ in read_lines(path, offset)]


def test_a_line_is_json_with_its_check_at_the_end_and_is_read_without(path: Path) -> None:
    assert all(list(json.loads(line)) == ["n", "check"] for line in path.read_text().splitlines())
    assert [row for row, _ in read_lines(path)] == [{"n": n} for n in range(4)]
    ends = [end for _, end in read_lines(path)]
    assert [numbers(path, end) for end in ends] == [[1, 2, 3], [2, 3], [3], []]


@settings(max_examples=150, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_wherever_it_is(path: Path, at: float, bit: int) -> None:
    whole = path.read_bytes()
    place = int(at * len(whole))
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    with pytest.raises(CorruptArtifactError, match=rf"{EVENTS} is damaged in line [1-4], at byte \d+"):
        numbers(path)
    with pytest.raises(CorruptArtifactError, match="run the same command again: what is finished is reused"):
        mend(path)
    path.write_bytes(whole)
    assert numbers(path) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("order", "line"),
    [((1, 2, 3), 1), ((0, 2, 3), 2), ((0, 1, 3), 3), ((0, 2, 1, 3), 2), ((0, 1, 1, 2, 3), 3), ((0, 1, 2, 9, 3), 4)],
    ids=["first removed", "second removed", "third removed", "swapped", "doubled", "added"],
)
def test_a_line_that_was_removed_moved_or_added_is_found(path: Path, order: tuple[int, ...], line: int) -> None:
    lines = [*path.read_bytes().splitlines(keepends=True), *[b'{"n": 9}\n'] * 6]
    path.write_bytes(b"".join(lines[index] for index in order))
    with pytest.raises(CorruptArtifactError, match=f"in line {line}, "):
        numbers(path)


def test_what_is_left_of_a_damaged_journal_can_be_had(path: Path) -> None:
    found: list[CorruptArtifactError] = []
    path.write_bytes(path.read_bytes().replace(b'"n": 1', b'"n": 7'))
    assert [row["n"] for row, _ in read_lines(path, on_damage=found.append)] == [0, 2, 3]
    assert [error.message.rpartition("/")[2] for error in found] == [f"{EVENTS} is damaged in line 2, at byte 38"]


def test_lines_of_an_earlier_version_are_read_and_those_behind_them_are_checked(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    path.write_text('{"n": 0}\n{"n": 1, "check": "mine"}\n')
    append_line(path, b'{"n": 2}', durable=False)
    append_line(path, b'{"n": 3}', durable=False)
    assert numbers(path) == [0, 1, 2, 3]
    path.write_bytes(path.read_bytes().replace(b'"n": 2', b'"n": 8'))
    with pytest.raises(CorruptArtifactError, match="line 3"):
        numbers(path)


def test_a_run_that_lost_its_journal_is_missed_unless_somebody_begins_it_just_now(tmp_path: Path) -> None:
    write(tmp_path, {"verb": "train"})
    with pytest.raises(CorruptArtifactError, match=f"{EVENTS} is missing, and {RUN} is there"):
        list(read_events(tmp_path))
    with run_lock(tmp_path):
        assert list(read_events(tmp_path)) == []
    Journal(tmp_path).run_started({"run": "demo"})
    assert len(list(read_events(tmp_path))) == 1


@settings(max_examples=100, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_settings_is_found_or_changes_nothing(tmp_path: Path, at: float, bit: int) -> None:
    written = {"verb": "train", "seed": 7, "recipe": {"name": "demo", "lr": 1e-4}}
    write(tmp_path, written)
    assert read_settings(tmp_path) == written
    whole = (tmp_path / RUN).read_bytes()
    place = int(at * len(whole))
    (tmp_path / RUN).write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
    said: list[str] = []
    found = read_settings(tmp_path, lambda damage: said.append(str(damage)))
    assert found == written or "delete that file and run the same command again" in said[0]


def test_settings_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    (tmp_path / RUN).write_text('{"verb": "ingest", "seed": 1}')
    assert read_settings(tmp_path) == {"verb": "ingest", "seed": 1}
