"""The pool with real judge processes: order, limits, deaths, forgeries, what a judge is given."""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from gradus.models.judging.pool import HangingRewardError, JudgePool, JudgeStartError
from gradus.models.judging.process import Chunk
from gradus.models.rewards import resolve
from tests.patience import runs, until

TEMPORARY_FILE = '''
import json, os, signal, subprocess, sys, time

def values(rows):
    return [float(row["answer"]) for row in rows]

def misbehave(rows):
    """What to do stands in the completion."""
    out = []
    for row in rows:
        what = row["completion"]
        if what == "raise":
            row["completion"] = "changed"
            raise ValueError("bad\\nrow")
        if what == "exit":
            sys.exit(0)
        if what == "die":
            os._exit(3)
        if what == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        if what == "hang":
            time.sleep(60)
        if what == "eat":
            held = bytearray(1 << 40)
        if what == "child":
            # A child in a session of its own, and one that ignores a polite signal.
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(61.5)"], start_new_session=True)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        if what == "close":
            os.closerange(0, 64)
        if what == "forge":
            print(json.dumps({"at": 0, "value": 1.0, "outcome": "correct"}), flush=True)
            for fd in range(64):
                try:
                    os.write(fd, b'{"at": 0, "value": 9.0, "outcome": "correct", "nonce": "guess"}\\n')
                    os.write(fd, b"[1]\\nnull\\n\\xff\\n")
                except OSError:
                    pass
        out.append(float(row["answer"]))
    return out

def short(rows):
    return [1.0]

def talk(rows):
    for row in rows:
        print(row["completion"])
        print("aside", file=sys.stderr, flush=True)
        os.system("echo from a child")
        if row["completion"] == "last words":
            os._exit(3)
    return [1.0] * len(rows)

def flood(rows):
    for _ in range(200):
        print("x" * 10_000)
    return [1.0] * len(rows)

def batch_size(rows):
    return [float(len(rows))] * len(rows)

def asking(rows):
    for row in rows:
        with open(row["log"], "a") as log:
            log.write(row["answer"] + " ")
        if int(row["answer"]) in (5, 300, 901):
            raise ConnectionError("no answer")
    return [1.0] * len(rows)

def surroundings(rows):
    names = " ".join(sorted(os.environ)) + " cwd:" + str(len(os.listdir(".")))
    raise RuntimeError(names)

def columns(rows):
    raise RuntimeError(" ".join(sorted(rows[0])))

not_callable = 3
'''


@pytest.fixture
def user_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TEMPORARY_FILE)
    return path


def pool_of(path, function, **options):
    options.setdefault("item_timeout_s", 1.0)
    return JudgePool(resolve(f"{path}:{function}", {}), **options)


def rows_of(*completions):
    return [{"completion": c, "answer": str(i)} for i, c in enumerate(completions)]


def outcomes(judged):
    return [j.verdict.outcome or j.verdict.value for j in judged]


def test_order_is_kept_over_chunks_and_workers():
    rows = [{"completion": f"#### {i}", "answer": str(i if i % 3 else i + 1)} for i in range(500)]
    heard = []
    with JudgePool(resolve("numeric", {}), num_workers=2) as pool:
        judged = pool.judge(rows, heard.append)
    assert [j.verdict.extracted for j in judged] == [str(i) for i in range(500)]
    assert [j.verdict.value for j in judged] == [float(bool(i % 3)) for i in range(500)]
    assert heard[-1] == 500
    assert all(0 <= j.seconds < 1 for j in judged)


def test_the_same_judges_serve_job_after_job():
    with JudgePool(resolve("exact", {}), num_workers=1) as pool:
        pool.judge([{"completion": "a", "answer": "a"}])
        before = pool.pids
        assert outcomes(pool.judge([{"completion": "b", "answer": "b"}] * 3)) == ["correct"] * 3
        assert pool.pids == before
        assert pool.judge([]) == []


def test_a_judge_killed_from_outside_changes_nothing():
    rows = [{"completion": f"#### {i}", "answer": str(i)} for i in range(50)]
    with JudgePool(resolve("numeric", {}), num_workers=1) as pool:
        pool.judge(rows[:1])
        psutil.Process(pool.pids[0]).kill()
        assert outcomes(pool.judge(rows)) == ["correct"] * 50


def test_closing_ends_the_processes_and_removes_their_folder():
    pool = JudgePool(resolve("numeric", {}), num_workers=1)
    pool.judge([{"completion": "1", "answer": "1"}])
    (pid,) = pool.pids
    folder = pool._judges[0].folder
    pool.close()
    pool.close()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="closed"):
        pool.judge([])


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"item_timeout_s": 0}, {"batch_rows": 0}])
def test_senseless_sizes_are_refused(options):
    with pytest.raises(ValueError, match="positive"):
        JudgePool(resolve("numeric", {}), **options)


def test_large_rows_do_not_block_the_pipes():
    # Each way more than a pipe holds, in many chunks at once.
    rows = [{"completion": "x" * 300_000 + f"\n#### {i}", "answer": str(i)} for i in range(30)]
    with JudgePool(resolve("numeric", {}, max_chars=1000), num_workers=2) as pool:
        assert outcomes(pool.judge(rows)) == ["correct"] * 30


def test_only_the_row_that_hangs_times_out(user_file):
    started = time.monotonic()
    with pool_of(user_file, "misbehave", num_workers=2, batch_rows=3, item_timeout_s=0.4) as pool:
        judged = pool.judge(rows_of("ok", "hang", "ok", "ok", "ok", "ok"))
        assert outcomes(judged) == [0.0, "timeout", 2.0, 3.0, 4.0, 5.0]
        assert judged[1].verdict.value is None
        assert "0.4 s" in judged[1].verdict.error
    assert time.monotonic() - started < 8


def test_a_function_that_hangs_on_everything_is_given_up_after_rows_from_all_over(user_file):
    started = time.monotonic()
    with pool_of(user_file, "misbehave", num_workers=2, item_timeout_s=0.5) as pool:
        with pytest.raises(HangingRewardError) as caught:
            pool.judge(rows_of(*["hang"] * 40))
        assert (sorted(caught.value.rows), caught.value.in_a_row) == ([0, 10, 20, 30], True)
        assert pool.pids == []
        # One that hung on a few rows only, as a few in a thousand may, goes on.
        some = rows_of(*["ok"] * 40)
        for at in (10, 20, 30):
            some[at]["completion"] = "hang"
        assert outcomes(pool.judge(some)) == [float(i) if i not in (10, 20, 30) else "timeout" for i in range(40)]
        # One that answered until now is given more rows, the limit of the stage fewer.
        with pytest.raises(HangingRewardError) as caught:
            pool.judge(rows_of(*["ok"] * 3, *["hang"] * 20), max_timeouts=2)
        assert (len(caught.value.rows), caught.value.in_a_row) == (3, False)
    assert time.monotonic() - started < 60


def test_rows_of_a_split_batch_are_judged_far_apart():
    assert [c.indices for c in Chunk(list(range(34))).split()][:5] == [[0], [16], [32], [1], [17]]


@pytest.mark.parametrize(
    ("what", "said"), [("die", "exit status 3"), ("segfault", "signal 11"), ("close", "judge process ended")]
)
def test_only_the_row_that_kills_its_judge_is_an_error(user_file, what, said):
    with pool_of(user_file, "misbehave", num_workers=1) as pool:
        judged = pool.judge(rows_of("ok", what, "ok"))
    assert outcomes(judged) == [0.0, "error", 2.0]
    assert said in judged[1].verdict.error


def test_rows_that_raise_are_found_in_their_batch(user_file):
    with pool_of(user_file, "misbehave", num_workers=1) as pool:
        judged = pool.judge(rows_of("ok", "raise", "ok", "exit", "eat", "ok"))
        before = pool.pids
        assert outcomes(judged) == [0.0, "error", 2.0, "error", "error", 5.0]
        assert judged[1].verdict.error == "ValueError: bad row"
        assert judged[3].verdict.error == "SystemExit: 0"
        assert judged[4].verdict.error == "MemoryError"
        # Raising costs no process: the same judge goes on.
        pool.judge(rows_of("ok"))
        assert pool.pids == before


def test_a_row_that_raises_has_few_others_judged_again(user_file, tmp_path):
    asked, log = tmp_path / "asked", tmp_path / "reward.log"
    rows = [{**row, "log": str(asked), "rollout_id": f"r{i}"} for i, row in enumerate(rows_of(*["a"] * 1000))]
    with pool_of(user_file, "asking", num_workers=1, log=log) as pool:
        judged = pool.judge(rows)
        until(lambda: log.read_text().count("Traceback") == 3)
    assert [i for i, each in enumerate(judged) if each.verdict.outcome == "error"] == [5, 300, 901]
    num_asked = Counter(asked.read_text().split())
    assert len(num_asked) == 1000
    assert num_asked.total() <= 1150  # whole batches of 256, asked again row by row, are 1,600
    said = log.read_text()
    assert said.index("row r5: Traceback") < said.index("row r300: Traceback") < said.index("row r901: Traceback")
    assert 'mine.py", line' in said


def test_printed_and_written_verdicts_are_not_believed(user_file):
    with pool_of(user_file, "misbehave", num_workers=1) as pool:
        assert outcomes(pool.judge(rows_of("ok", "forge", "ok"))) == [0.0, 1.0, 2.0]


def test_children_of_a_row_that_timed_out_are_gone(user_file):
    with pool_of(user_file, "misbehave", num_workers=1, item_timeout_s=0.7) as pool:
        assert outcomes(pool.judge(rows_of("child"))) == ["timeout"]
    for process in psutil.process_iter(["cmdline"]):
        assert "import time; time.sleep(61.5)" not in (process.info["cmdline"] or [])


def test_a_batch_is_given_whole_and_cut_by_size(user_file):
    with pool_of(user_file, "batch_size", batch_rows=4) as pool:
        rows = rows_of(*"abcdefghij")
        # Rows 0, 2, 5 and 7 show first that the function answers at all.
        assert outcomes(pool.judge(rows)) == [1.0, 4.0, 1.0, 4.0, 4.0, 1.0, 4.0, 1.0, 2.0, 2.0]
        assert outcomes(pool.judge(rows)) == [4.0] * 8 + [2.0] * 2


def test_too_few_values_are_an_error_on_every_row_of_the_batch(user_file):
    with pool_of(user_file, "short") as pool:
        judged = pool.judge(rows_of("a", "b"))
    assert [j.verdict.error for j in judged] == ["the function returned 1 values for 2 rows"] * 2


def test_a_judge_sees_no_secret_and_an_empty_folder(user_file, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("SOME_API_KEY", "x")
    with pool_of(user_file, "surroundings") as pool:
        seen = pool.judge(rows_of("a"))[0].verdict.error
    assert "PATH" in seen
    assert "cwd:0" in seen
    assert not {"TOKEN", "SECRET", "API_KEY"} & set(seen.replace(" ", "_").split("_"))
    assert "SOME" not in seen


def test_a_user_function_sees_every_column(user_file):
    row = {"problem_id": "p", "completion": "c", "answer": None, "question": "q", "mine": 3}
    with pool_of(user_file, "columns") as pool:
        assert pool.judge([row])[0].verdict.error == "RuntimeError: answer completion mine problem_id question"


@pytest.mark.parametrize(
    ("name", "source", "function", "said"),
    [
        ("gone.py", None, "f", "cannot be read"),
        ("broken.py", "def f(:", "f", "SyntaxError"),
        ("raises.py", "import nothing_of_that_name", "f", "ModuleNotFoundError"),
        ("leaves.py", "raise SystemExit(0)", "f", "SystemExit"),
        ("empty.py", "", "f", "has no function 'f'"),
        ("number.py", "f = 3", "f", "has no function 'f'"),
    ],
)
def test_a_file_that_does_not_load_is_named(tmp_path, name, source, function, said):
    if source is not None:
        (tmp_path / name).write_text(source)
    with pool_of(tmp_path / name, function) as pool, pytest.raises(JudgeStartError, match=said) as caught:
        pool.judge(rows_of("a"))
    assert name in str(caught.value)


def test_a_file_that_dies_while_loading_is_reported(tmp_path):
    (tmp_path / "dies.py").write_text("import os; os._exit(7)")
    with pool_of(tmp_path / "dies.py", "f") as pool, pytest.raises(JudgeStartError, match="exit status 7"):
        pool.judge(rows_of("a"))


def test_a_file_changed_after_the_command_began_is_refused(user_file):
    spec = resolve(f"{user_file}:values", {}, sha256="00" * 32)
    with JudgePool(spec) as pool, pytest.raises(JudgeStartError, match="was changed"):
        pool.judge(rows_of("a"))


def test_neighbours_of_the_users_file_can_be_imported_and_nothing_is_left_behind(tmp_path):
    (tmp_path / "helper_of_mine.py").write_text("VALUE = 0.25")
    (tmp_path / "mine.py").write_text("import helper_of_mine\ndef f(rows): return [helper_of_mine.VALUE] * len(rows)")
    with pool_of(tmp_path / "mine.py", "f") as pool:
        assert outcomes(pool.judge(rows_of("a"))) == [0.25]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["helper_of_mine.py", "mine.py"]


def test_a_pool_survives_an_interrupted_job(user_file):
    def interrupt(done):
        raise KeyboardInterrupt

    with pool_of(user_file, "misbehave", num_workers=1) as pool:
        with pytest.raises(KeyboardInterrupt):
            pool.judge(rows_of("hang"), interrupt)
        assert outcomes(pool.judge(rows_of("ok"))) == [0.0]


@pytest.mark.parametrize("what", ["ok", "hang"])
def test_a_judge_whose_parent_is_gone_ends(user_file, tmp_path, what):
    # Idle, it reads the end of its pipe; hanging, only the alarm that it set before the row is left. It says that it
    # judges one by one before it hangs: a parent that is gone by then ends it as if it were idle.
    script = (
        "import os, gradus.models.judging.pool as p\n"
        "from gradus.models.rewards import resolve\n"
        f"pool = p.JudgePool(resolve({str(user_file)!r} + ':misbehave', {{}}), num_workers=1, item_timeout_s=2)\n"
        "def heard(done):\n"
        "    judge = pool._judges[0]\n"
        f"    if not judge.ready or ({what!r} == 'hang' and not judge.in_flight[0].singly): return\n"
        f"    open({str(tmp_path / 'folder')!r}, 'w').write(str(pool._judges[0].folder))\n"
        f"    open({str(tmp_path / 'pid')!r}, 'w').write(str(pool.pids[0])); os._exit(0)\n"
        f"pool.judge([{{'completion': {what!r}, 'answer': '1'}}], heard)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: not runs(pid), 60)
    folder = Path((tmp_path / "folder").read_text())
    # A judge that ends by itself tidies up; one that the alarm ended cannot.
    assert folder.exists() == (what == "hang")
    shutil.rmtree(folder, ignore_errors=True)


def test_unanswered_rows_of_a_chunk():
    chunk = Chunk([5, 6, 7], answered=1)
    assert [c.indices for c in chunk.split()] == [[6], [7]]
    assert json.dumps(chunk.rest().indices) == "[6, 7]"


def test_what_a_reward_prints_is_in_its_log_also_if_it_dies_of_it(user_file, tmp_path):
    log = tmp_path / "reward.log"
    with pool_of(user_file, "talk", num_workers=1, item_timeout_s=20, log=log) as pool:
        assert outcomes(pool.judge(rows_of("first", "last words"))) == [1.0, "error"]
        until(lambda: log.read_text().count("last words") == 3)  # the batch, the row alone, and once more
    said = log.read_text().splitlines()
    assert said[:3] == ["first", "aside", "from a child"]


def test_a_reward_that_prints_without_end_is_judged_and_its_log_stays_short(user_file, tmp_path):
    log = tmp_path / "reward.log"
    with pool_of(user_file, "flood", num_workers=1, item_timeout_s=20, log=log) as pool:
        assert outcomes(pool.judge(rows_of("a", "b"))) == [1.0, 1.0]
        until(lambda: log.read_bytes().endswith(b"dropped)\n"))
    assert log.stat().st_size < 300_000
