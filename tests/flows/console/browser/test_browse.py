"""`gradus browse` with the keys of a person, in a terminal of 80 columns."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input, Static

from gradus.data.errors import BadInputError, UsageError
from gradus.flows.console.browser.program import Browser, LabelBrowser, Lines, browse_run
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.agreement.labels import ask_for, read_labels
from gradus.tasks.inspect.sql_views import open_run
from tests.tasks.made_run import RUN, MadeRun

HOSTILE = "[red]x[/red] \x1b[2J\x1b]0;owned\x07 \u202eabc [link=http://127.0.0.1]y[/link] \x9b31m" + "word " * 200_000
Act = Callable[[Pilot[None]], Awaitable[None]]


def browse(home: Home, act: Act, size: tuple[int, int] = (80, 24)) -> None:
    """Run the browser on the run and act in it."""

    async def look() -> None:
        with open_run(home, RUN, pytest.fail) as rows:
            app = Browser(rows)
            async with app.run_test(size=size) as pilot:
                await pilot.pause()
                await act(pilot)

    asyncio.run(look())


async def screen(pilot: Pilot[None], *keys: str) -> str:
    """Press keys; return what the terminal shows then."""
    await pilot.press(*keys)
    await pilot.pause()
    await pilot.pause()
    return "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    MadeRun(Home(tmp_path)).whole()
    return Home(tmp_path)


def test_rounds_lead_to_groups_and_a_group_is_side_by_side(home: Home) -> None:
    async def act(pilot: Pilot[None]) -> None:
        rounds = await screen(pilot)
        assert "2 rounds in 5 lines" in rounds
        assert re.search(r"1\s+hint2\s+2\s+4\s+25 %\s+0.25\s+4\s+11.5", rounds)
        for key in (
            "open",
            "1 rounds",
            "2 problems",
            "3 groups",
            "f filter",
            "o order",
            "d diff",
            "esc back",
            "q quit",
        ):
            assert key in rounds
        groups = await screen(pilot, "down", "enter")
        assert "2 groups of round 1, hint2" in groups
        group = await screen(pilot, "enter")
        assert "2 + 2 =" in group
        assert "hint of level 2: think" in group
        best, worst = (group.index(text) for text in ("b0 of hint2 1", "b1 of hint2 1"))
        assert best < worst  # in one line, beside each other
        assert "\n" not in group[best:worst]
        back = await screen(pilot, "escape", "escape")
        assert "2 rounds in 5 lines" in back

    browse(home, act)


def test_a_filter_restricts_every_list_and_a_wrong_one_says_why(home: Home) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await screen(pilot, "3", "f", *"reward<0", "enter")
        assert "0 groups" in await screen(pilot)
        await screen(pilot, "f", "ctrl+r")
        assert "12 groups" in await screen(pilot)
        await screen(pilot, "f")
        pilot.app.screen.query_one(Input).value = "reward = 1 and hint_level = 2 and problem_id = 'b'"
        assert "1 groups" in await screen(pilot, "enter")
        await screen(pilot, "f")
        pilot.app.screen.query_one(Input).value = "nonesuch > 1"
        wrong = await screen(pilot, "enter")
        assert "the filter does not run" in wrong
        assert "1 groups" in await screen(pilot, "escape")

    browse(home, act)


def test_a_problem_is_compared_between_two_rounds(home: Home) -> None:
    async def act(pilot: Pilot[None]) -> None:
        await screen(pilot, "2")
        table = pilot.app.screen.query_one(Lines)
        names = [str(table.get_row_at(row)[0]) for row in range(table.row_count)]
        table.move_cursor(row=names.index("b"))
        shown = await screen(pilot, "d")
        assert "round 1, hint2, b" in shown
        assert "round 2, train, b" in shown
        assert "best of 2, 1 right" in shown
        assert "b0 of hint2 1" in shown
        assert "b0 of train 2" in shown
        assert "round 1, train, b" in await screen(pilot, "right")
        assert "b1 of train 2" in await screen(pilot, "w")

    browse(home, act)


def test_rows_are_labelled_one_after_the_other_and_the_file_is_written(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    rows = [{"rollout_id": name, "question": f"{name}?", "answer": "3", "completion": HOSTILE} for name in "abc"]
    ask_for(file, rows)

    async def act(pilot: Pilot[None]) -> None:
        assert "row 1 of 3, 3 without a label: no label" in await screen(pilot)
        assert "row 2 of 3, 2 without a label: no label" in await screen(pilot, "y")
        await screen(pilot, "n")
        assert read_labels(file) == {"a": True, "b": False, "c": None}
        assert "row 2 of 3, 1 without a label: wrong" in await screen(pilot, "left")
        await screen(pilot, "u")
        assert read_labels(file) == {"a": True, "b": None, "c": None}
        shown = "".join(str(each.render()) for each in pilot.app.screen.query(Static))
        assert "[red]x[/red]" in shown
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)

    async def look() -> None:
        app = LabelBrowser(file)
        async with app.run_test(size=(80, 24)) as pilot:
            await act(pilot)

    asyncio.run(look())
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [{key: row[key] for key in rows[0]} for row in kept] == rows
    with pytest.raises(BadInputError, match="has no row to label"):
        LabelBrowser(tmp_path / "none.jsonl")


def test_orders_follow_each_other(home: Home) -> None:
    async def act(pilot: Pilot[None]) -> None:
        assert "by change" in await screen(pilot, "2")
        ordered = await screen(pilot, "o")
        assert "by hardest" in ordered
        assert ordered.index("c ") < ordered.index("a ")

    browse(home, act)


@pytest.mark.parametrize("size", [(80, 24), (40, 12)])
def test_a_hostile_completion_stays_text(tmp_path: Path, size: tuple[int, int]) -> None:
    MadeRun(Home(tmp_path), {(1, "train", "a", 0): HOSTILE, (2, "train", "a", 0): HOSTILE}).whole()

    async def act(pilot: Pilot[None]) -> None:
        await screen(pilot, "3")
        table = pilot.app.screen.query_one(Lines)
        keys = [[str(each) for each in table.get_row_at(row)[:3]] for row in range(table.row_count)]
        table.move_cursor(row=keys.index(["1", "train", "a"]))
        for keypress in (("enter",), ("escape", "d")):
            await screen(pilot, *keypress)
            shown = "".join(str(each.render()) for each in pilot.app.screen.query(Static))
            assert "[red]x[/red]" in shown
            assert "[link=http://127.0.0.1]y[/link]" in shown
            assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
            assert len(shown) < 60_000

    browse(Home(tmp_path), act, size)


def test_elsewhere_than_on_a_terminal_it_says_what_to_do_instead(home: Home) -> None:
    with pytest.raises(UsageError, match=f"browse needs a terminal; `gradus report {RUN}` writes a page instead"):
        browse_run(home, RUN, pytest.fail)


def test_a_run_that_has_done_nothing_yet_is_an_empty_list(tmp_path: Path) -> None:
    MadeRun(Home(tmp_path))

    async def act(pilot: Pilot[None]) -> None:
        assert "0 rounds" in await screen(pilot)
        assert "0 groups" in await screen(pilot, "3", "enter", "d", "o")

    browse(Home(tmp_path), act)
