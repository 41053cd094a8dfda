"""An artifact is opened by the name that commands print: show, sql, browse."""

import asyncio
import json

import pytest
from textual.pilot import Pilot

from gradus.data.errors import UsageError
from gradus.flows.cli import main as cli
from gradus.flows.console.browser.program import RowBrowser
from gradus.tasks.config.settings import Home
from gradus.tasks.inspect.sql_views import ask
from tests.tasks.made_run import MadeRun

PROBLEMS = "problems/" + "9" * 32


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    found = Home(tmp_path_factory.mktemp("home"))
    MadeRun(found).whole()
    return found


def told(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main(list(words))
    assert end.value.code in (0, None)
    return capsys.readouterr().out


def test_show_says_what_it_is_and_its_first_rows(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADUS_HOME", str(home.root))
    found = json.loads(told(capsys, "show", PROBLEMS[:14], "--json"))
    assert (found["artifact"], found["rows"], found["columns"]["domain"]) == (PROBLEMS, 5, "string")
    text = told(capsys, "show", PROBLEMS)
    assert ("1 + 1 =" in text, "4 + 4 =" in text) == (True, False)
    (rollouts, *_) = (path.name for path in sorted((home.lake / "rollouts").iterdir()))
    assert json.loads(told(capsys, "show", f"rollouts/{rollouts}", "--json"))["made_of"] == {"problems": [PROBLEMS]}


@pytest.mark.parametrize("name", [PROBLEMS, "problems/9999", f"'{PROBLEMS}'", f'"{PROBLEMS}"'])
def test_sql_takes_it_for_a_table_in_any_quotes(home: Home, name: str) -> None:
    query = f"select count(*), max(answer) from {name} p join problems using (problem_id)"
    with ask(home, query.replace("max(answer)", "max(p.answer)"), None, pytest.fail) as found:
        assert [tuple(row.values()) for batch in found.batches for row in batch.to_pylist()] == [(5, "8")]


def test_sql_refuses_an_artifact_that_is_not_there_and_leaves_texts_alone(home: Home) -> None:
    with (
        pytest.raises(UsageError, match="there is no artifact problems/1234"),
        ask(home, "from problems/1234", None, pytest.fail),
    ):
        pass
    with ask(home, "select output from stages where output = 'problems/1234'", None, pytest.fail) as found:
        assert [batch.num_rows for batch in found.batches if batch.num_rows] == []


@pytest.mark.slow
def test_browse_lists_its_rows_and_opens_one(home: Home) -> None:
    async def look() -> None:
        with ask(home, f"select problem_id, question from {PROBLEMS} order by 1", None, pytest.fail) as found:
            app = RowBrowser(PROBLEMS, found)
            async with app.run_test(size=(80, 24)) as pilot:
                assert "3 + 3 =" in await screen(pilot)
                opened = await screen(pilot, "down", "enter")
                assert ("question: 2 + 2 =" in opened, "3 + 3" in opened) == (True, False)
                assert "3 + 3 =" in await screen(pilot, "escape")

    asyncio.run(look())


async def screen(pilot: Pilot[None], *keys: str) -> str:
    await pilot.press(*keys)
    await pilot.pause()
    await pilot.pause()
    return "\n".join(strip.text for strip in pilot.app.screen._compositor.render_strips())
