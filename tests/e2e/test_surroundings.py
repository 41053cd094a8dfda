"""A verb in bad surroundings: a proxy in the environment, modules named like Python's own in the current folder."""

from collections.abc import Callable
from typing import Any

from tests.hostile import make_hostile
from tests.proxy import Proxy

Program = Any


def test_a_verb_minds_neither_proxy_nor_warnings_nor_files_of_the_current_folder(
    new_program: Callable[..., Program],
) -> None:
    program = new_program(alone=True, reports=True)
    extra = make_hostile(program.home)
    (program.home / "mine.jsonl").write_text('{"problem_id": "a", "completion": "so 7", "answer": "7"}\n')
    reward = program.home / "mine.py"
    reward.write_text("def judge(rows):\n    return [1.0 for row in rows]\n")
    with Proxy() as proxy:
        names = ("http_proxy", "HTTPS_PROXY", "ALL_PROXY")
        chosen = ("--rollouts", "mine.jsonl", "--reward", "numeric", "--reward", "mine.py:judge=0.5")
        code, out, err = program.run("score", *chosen, "--json", **dict.fromkeys(names, proxy.url), **extra)
        assert (code, err.split()[:3], len(err.splitlines())) == (0, ["score", "1", "rows"], 1), err
        assert '"rows": 1' in out
        assert program.prefect_state(program.launches()[0]) == "COMPLETED"
        assert program.mlflow_states(program.launches()[0]) == ["FINISHED", "FINISHED"]
        assert proxy.seen == []
    logs = [path.read_text() for path in program.home.glob("**/*.log")]
    assert not [log for log in logs if "of the current folder" in log]
