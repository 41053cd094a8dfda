"""A judge that was down, and a reward that was edited: what is judged again, and under which name."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import RECIPE, Program

JUDGE = """
from pathlib import Path

def judge(rows):
    here = Path(__file__).parent
    answers = []
    for row in rows:
        down = (here / "down").exists() and sum(map(ord, row["problem_id"])) % 4 == 0
        with (here / "asked").open("a") as log:
            log.write(f"{row['rollout_id']} {'down' if down else 'up'}\\n")
        if down:
            raise ConnectionError("the judge does not answer")
        right = row["completion"].rpartition("####")[2].strip() == row["answer"]
        answers.append({"value": float(right), "correct": right})
    return answers
"""


def asked(folder: Path) -> list[str]:
    found = (folder / "asked").read_text().splitlines()
    (folder / "asked").unlink()
    return [line for line in found if not line.startswith("trial:")]


def test_a_judge_that_is_up_again_is_asked_for_the_rows_that_failed_alone(
    new_program: Callable[..., Program], tmp_path: Path
) -> None:
    program = new_program(warm=True)
    (tmp_path / "mine.py").write_text(JUDGE)
    (tmp_path / "down").touch()
    rewards = f'score.rewards=[{{name="{tmp_path}/mine.py:judge"}}]'
    command = ("train", str(RECIPE), "--set", rewards, "--set", "escalate=[]")
    code, _, err = program.run(*command)
    assert code == 1
    assert "could not be judged, more than max_error_frac" in " ".join(err.split())
    (log,) = (program.home / "runs").glob("*/logs/reward-mine-judge.log")
    assert 'mine.py", line 12, in judge' in log.read_text()
    answers = [line.split() for line in asked(tmp_path)]
    failed = {rollout for rollout, answer in answers if answer == "down"}
    judged = {rollout for rollout, answer in answers} - failed
    assert failed
    assert judged
    (tmp_path / "down").unlink()
    first = program.json(*command)
    of_next = [line.split()[0] for line in asked(tmp_path)]
    assert set(of_next[: len(failed)]) == failed
    assert not judged & set(of_next)
    # Edited, the reward is that of another run; what was sampled before the first update stays.
    (tmp_path / "mine.py").write_text(JUDGE.replace("float(right)", "0.5 * right"))
    foreseen = program.json("rerun", first["run"], "score", "--dry-run")
    assert foreseen["run"] != first["run"]
    code, out, err = program.run("rerun", first["run"], "score", "--json")
    assert code == 0, err
    assert f"a file that {first['run']} names has changed since: this is another run, {foreseen['run']}" in err
    again = json.loads(out)
    assert again["run"] == foreseen["run"]
    assert again["stages"]["score"]["ran"] > 0
    assert program.json("sql", "select max(reward) as top from samples where purpose = 'train'", "--run", again["run"])[
        "rows"
    ] == [[0.5]]
