"""A verb in bad surroundings: a proxy, hostile files in the current folder and the home, a dying server, SIGTERM."""

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradus.tasks.host.interrupt import SENTENCES
from tests import servers
from tests.e2e.conftest import Program
from tests.hostile import make_hostile, make_settings
from tests.proxy import Proxy

SLOW = "import time\n\n\ndef slow(rows):\n    time.sleep(600)\n    return [0.0 for _ in rows]\n"


def kill_the_first_server(home: Path) -> None:
    """Kill the Prefect server that a command starts, before it can answer."""
    while not (found := servers.servers(home)):
        time.sleep(0.01)
    servers.kill(found[0])


def test_a_verb_minds_neither_proxy_nor_warnings_nor_files_that_lie_about_nor_a_dead_server(
    new_program: Callable[..., Program],
) -> None:
    program = new_program(alone=True, reports=True)
    extra = make_hostile(program.home)
    (program.home / "servers").mkdir()
    canary = program.home / "canary"
    for folder in (program.home, program.home / "servers"):
        make_settings(folder, canary)
    (program.home / "mine.jsonl").write_text('{"problem_id": "a", "completion": "so 7", "answer": "7"}\n')
    reward = program.home / "mine.py"
    reward.write_text("def judge(rows):\n    return [1.0 for row in rows]\n")
    threading.Thread(target=kill_the_first_server, args=(program.home,), daemon=True).start()
    with Proxy() as proxy:
        names = ("http_proxy", "HTTPS_PROXY", "ALL_PROXY")
        chosen = ("--rollouts", "mine.jsonl", "--reward", "numeric", "--reward", "mine.py:judge=0.5")
        code, out, err = program.run("score", *chosen, "--json", **dict.fromkeys(names, proxy.url), **extra)
        assert (code, err.split()[:3], len(err.splitlines())) == (0, ["score", "1", "rows"], 1), err
        assert '"rows": 1' in out
        assert program.prefect_state(program.launches()[0]) == "COMPLETED"
        assert program.mlflow_states(program.launches()[0]) == ["FINISHED", "FINISHED"]
        assert proxy.seen == []
    assert not canary.exists()
    logs = [path.read_text() for path in program.home.glob("**/*.log")]
    assert not [log for log in logs if "of the current folder" in log]


def test_sigterm_in_a_stage_ends_its_run_and_says_so(new_program: Callable[..., Program]) -> None:
    program = new_program()
    (program.home / "mine.jsonl").write_text('{"problem_id": "a", "completion": "so 7", "answer": "7"}\n')
    (program.home / "slow.py").write_text(SLOW)
    process = program.start("score", "--rollouts", "mine.jsonl", "--reward", "slow.py:slow")

    def events() -> dict[str, dict[str, Any]]:
        found = (program.home / "runs").glob("*/events.jsonl")
        lines = (line for path in found for line in path.read_text().splitlines())
        return {event["event"]: event for event in map(json.loads, lines)}

    while "stage_started" not in events():
        assert process.poll() is None, program.told()
        time.sleep(0.05)
    process.terminate()
    assert process.wait(timeout=120) == 143
    assert program.told().splitlines() == [SENTENCES[signal.SIGTERM]]
    ended = events()["run_finished"]
    assert (ended["status"], ended["error"].split(";")[0]) == ("killed", "ended by SIGTERM")
    assert program.prefect_state(program.launches()[0]) == "CRASHED"
