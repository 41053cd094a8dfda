"""Control groups of the sandbox: where they are made, what they end, and what is left of them."""

import contextlib
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from gradus.models.judging.pool import JudgePool
from gradus.models.judging.process import MEMORY_BYTES
from gradus.models.rewards import resolve
from gradus.models.sandbox import CellLostError, Program, Ran, Sandbox, SandboxUnavailableError, groups, launchers
from tests.conftest import TESTS_PATH
from tests.patience import until
from tests.sandboxes import MIB, needs_sandbox, only

LIMITS = {"build": 64 * MIB, "memory": 32 * MIB, "disk": MIB, "processes": 4, "own_processes": 8}
V1_LIMIT = "memory.limit_in_bytes"
UNSEEN = """
    import mmap
    held = mmap.mmap(-1, 1 << 42, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
    for at in range(0, 1 << 42, 1 << 21):
        held[at]  # the zero page, which counts as no memory of the process, and 4 KiB of page table
"""


def _has_groups() -> bool:
    made = groups.made(*groups.bounds(LIMITS))
    has = bool(made.folders)
    made.remove()
    return has


needs_groups = pytest.mark.skipif(not _has_groups(), reason="this machine lets us make no control group")
backends = pytest.mark.parametrize("backend", launchers.BACKENDS, ids=lambda backend: backend.name)


@pytest.fixture
def sandbox(backend: type) -> Iterator[Sandbox]:
    try:
        made = only(backend)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    with made:
        yield made


def folders(sandbox: Sandbox) -> list[Path]:
    assert isinstance(sandbox._launcher, launchers.Namespaces | launchers.Bubblewrap)
    return list(sandbox._launcher._group.folders)


def members(sandbox: Sandbox) -> dict[int, str | None]:
    """Return the processes of a sandbox, with the name of its group for those that are in all its folders."""
    launcher, held = sandbox._launcher, folders(sandbox)
    assert isinstance(launcher, launchers.Namespaces | launchers.Bubblewrap)
    found: dict[int, str | None] = {}
    for process in [launcher._process] if isinstance(launcher, launchers.Namespaces) else launcher._started:
        with contextlib.suppress(psutil.Error):
            first = psutil.Process(process.pid)
            for each in (first, *first.children(recursive=True)):
                with contextlib.suppress(OSError):
                    num = Path(f"/proc/{each.pid}/cgroup").read_text().count(held[0].name)
                    found[each.pid] = held[0].name if num == len(held) else None
    return found


def said(sandbox: Sandbox, code: str) -> str:
    with sandbox.open(Program(code)) as program:
        return program.run(limit_s=5.0).stdout.strip()


def gone(paths: list[Path], within_s: float = 10.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(path.exists() for path in paths) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(path.exists() for path in paths)


@needs_sandbox
@needs_groups
@backends
def test_every_process_of_a_sandbox_is_in_its_group_until_it_is_closed(sandbox: Sandbox) -> None:
    assert sandbox.grouped
    held = folders(sandbox)
    with sandbox.open(Program("import os, time\nos.fork()\ntime.sleep(60)")) as program:
        program.request({"mode": "main", "limit_s": 60})
        until(
            lambda: len(members(sandbox)) >= 5 and None not in members(sandbox).values(),
            20,
            wrong=lambda: str(members(sandbox)),
        )
        for folder in held:
            assert set(map(int, (folder / "cgroup.procs").read_text().split())) <= members(sandbox).keys()
    assert held[0].name not in Path("/proc/self/cgroup").read_text()
    sandbox.close()
    assert gone(held, within_s=0.1)


@needs_sandbox
@needs_groups
@backends
def test_memory_that_the_watchdog_does_not_see_ends_the_program_alone(
    backend: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "bounds", lambda limits: (256 * MIB, 128))
    try:
        made = only(backend)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))

    def outcome(sandbox: Sandbox, program: Program) -> Ran | None:
        with sandbox.open(program) as cell:
            try:
                return cell.run(limit_s=20.0)
            except CellLostError:
                return None

    with made as sandbox, only(backend) as other:
        with other.open(Program("import time\ntime.sleep(2)\nprint(7)")) as beside:
            beside.request({"mode": "main", "limit_s": 30.0})
            for _ in range(2):
                found = outcome(sandbox, Program(textwrap.dedent(UNSEEN), reserves=True))
                assert found is None or (found.ended, found.status) == ("exit", -9), found
                after = outcome(sandbox, Program("print(1)")) or outcome(sandbox, Program("print(1)"))
                assert after is not None
                assert after.stdout == "1\n"
            assert beside.answer(time.monotonic() + 30)["stdout"] == "7\n"
        assert sandbox.grouped
        held = folders(sandbox)
    assert gone(held, within_s=0.1)


@needs_sandbox
@needs_groups
def test_a_first_process_that_the_kernel_ended_is_replaced_in_a_new_group() -> None:
    with only(launchers.Namespaces) as sandbox:
        before = folders(sandbox)
        assert isinstance(sandbox._launcher, launchers.Namespaces)
        sandbox._launcher._process.kill()
        sandbox._launcher._process.wait()
        assert said(sandbox, "print(1)") == "1"
        assert sandbox.grouped
        assert folders(sandbox) != before
        assert gone(before, within_s=0.1)


@needs_sandbox
@needs_groups
@backends
def test_the_group_of_an_owner_that_was_killed_is_removed_by_the_next_one(backend: type, sandbox: Sandbox) -> None:
    code = f"""
        import time
        from gradus.models.sandbox import launchers
        from tests.sandboxes import only
        sandbox = only(launchers.{backend.__name__})
        print(*sandbox._launcher._group.folders, flush=True)
        time.sleep(600)
    """
    command, env = [sys.executable, "-c", textwrap.dedent(code)], {**os.environ, "PYTHONPATH": TESTS_PATH}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        left = list(map(Path, owner.stdout.readline().split()))
        assert left
        assert all(path.is_dir() for path in left)
        family = psutil.Process(owner.pid).children(recursive=True)
        stays = subprocess.Popen(groups.Group(left).entered_by(["sleep", "600"]))  # dies with no parent
        while str(stays.pid) not in (left[-1] / "cgroup.procs").read_text().split():
            time.sleep(0.01)
        owner.kill()
    psutil.wait_procs(family, timeout=10)
    deadline = time.monotonic() + 10
    while any(path.exists() for path in left) and time.monotonic() < deadline:
        groups.made(*groups.bounds(LIMITS)).remove()
    assert not any(path.exists() for path in left)
    assert stays.wait(timeout=10) == -signal.SIGKILL
    assert all(path.is_dir() for path in folders(sandbox))


@needs_groups
def test_a_group_of_another_namespace_of_processes_is_left_alone() -> None:
    made = groups.made(*groups.bounds(LIMITS))
    # Of no process that we could know, on a machine that other checkouts may use too.
    theirs = made.folders[-1].with_name(f"gradus-sandbox-1-{2**30}-{secrets.token_hex(4)}")
    theirs.mkdir()
    group = groups.Group([theirs])
    with subprocess.Popen(group.entered_by(["sleep", "600"])) as lives:
        try:
            while str(lives.pid) not in (theirs / "cgroup.procs").read_text().split():
                time.sleep(0.01)
            groups.made(*groups.bounds(LIMITS)).remove()
            assert lives.poll() is None
        finally:
            lives.kill()
    group.remove()
    made.remove()
    assert not theirs.exists()


@needs_sandbox
@backends
@pytest.mark.parametrize("found", ["none", "not writable"])
def test_without_a_group_programs_run_and_end_as_before(
    backend: type, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [tmp_path / "nowhere"] if found == "not writable" else []
    monkeypatch.setattr(groups, "places", lambda own, mounts: places)
    try:
        made = only(backend)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    with made as sandbox:
        assert (sandbox.grouped, folders(sandbox)) == (False, [])
        assert said(sandbox, "print(1)") == "1"
        with sandbox.open(Program("x = []\nwhile True: x.append(bytearray(1 << 22))")) as program:
            assert not program.run(limit_s=5.0).ok
        with sandbox.open(Program("import time\ntime.sleep(60)")) as program:
            assert program.run(limit_s=0.3).ended == "time"


FORKS = """
import os, signal, time

def right(rows):
    children = []
    try:
        while any(row["completion"] == "fork" for row in rows) and len(children) < 2000:
            children.append(os.fork())
            if children[-1] == 0:
                time.sleep(60)
    except BlockingIOError:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        raise RuntimeError(f"{len(children)} children")
    return [1.0 for _ in rows]
"""


@needs_sandbox
@needs_groups
def test_an_isolated_reward_that_forks_is_bounded_by_the_group_of_its_judge(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FORKS)
    rows = [{"completion": text, "answer": None} for text in ("a", "fork", "b")]
    with JudgePool(resolve(f"{tmp_path}/mine.py:right", {}, isolated=True), num_workers=1) as pool:
        first, bomb, last = (judged.verdict for judged in pool.judge(rows))
        (judge,) = pool._judges
        held = list(judge._group.folders)
        assert judge._group.holds(judge.pid)
        (limit,) = [path for at in held for path in at.glob("memory.*") if path.name in ("memory.max", V1_LIMIT)]
        assert MEMORY_BYTES <= int(limit.read_text()) < MEMORY_BYTES + 2048 * MIB
    assert (first.value, last.value) == (1.0, 1.0)
    said = re.search(r"(\d+) children", bomb.error or "")
    assert said
    assert 100 < int(said[1]) < 256
    assert held
    assert [each for each in held if each.exists()] == []


def test_a_group_that_cannot_be_entered_keeps_no_command_from_its_work(tmp_path: Path) -> None:
    group = groups.Group([tmp_path / "nowhere", tmp_path / "with a space"])
    command = group.entered_by(["/bin/sh", "-c", 'printf "%s|" "$@"', "sh", "--", "a b"])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("--|a b|", "")
    assert not group.holds(os.getpid())
    assert not groups.Group().holds(os.getpid())
    assert groups.Group().entered_by(["x"]) == ["x"]


def test_a_group_has_room_for_a_program_and_its_tests_twice() -> None:
    memory_bytes, num_processes = groups.bounds(LIMITS)
    assert memory_bytes > 2 * (64 * MIB + 32 * MIB + 4 * MIB)
    assert num_processes > 4 * (4 + 8)


UNIFIED = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
PIDS = "39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids"
OTHER = "23 1 0:21 / / rw - ext4 /dev/vda rw"


def tree(root: Path, *paths: str, handed_down: str = "cpu memory pids") -> Path:
    for path in paths:
        folder = root / "sys/fs/cgroup" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(f"{handed_down}\n")
    return root / "sys/fs/cgroup"


def found(root: Path, own: str, *mounts: str) -> list[Path]:
    return groups.places(f"{own}\n", "\n".join((OTHER, *mounts)), root)


def test_a_group_of_version_2_is_made_beside_our_own(tmp_path: Path) -> None:
    at = tree(tmp_path, "user.slice", "user.slice/job")
    assert found(tmp_path, "0::/user.slice/job", UNIFIED) == [at / "user.slice"]
    tree(tmp_path, "user.slice", handed_down="cpu pids")
    assert found(tmp_path, "0::/user.slice/job", UNIFIED) == []
    assert found(tmp_path, "0::/user.slice/job") == []
    assert found(tmp_path, "0::/not/there", UNIFIED) == []


def test_in_the_root_of_a_mount_a_group_of_version_2_is_made_in_it(tmp_path: Path) -> None:
    at = tree(tmp_path, "")
    assert found(tmp_path, "0::/", UNIFIED) == [at]
    shown = UNIFIED.replace(" / /sys", " /pod/one /sys")
    assert found(tmp_path, "0::/pod/one", shown) == [at]
    assert found(tmp_path, "0::/pod/two", shown) == []
    tree(tmp_path, "", handed_down="")
    assert found(tmp_path, "0::/", UNIFIED) == []


def test_groups_of_version_1_are_made_in_our_own_of_memory_and_of_processes(tmp_path: Path) -> None:
    at = tree(tmp_path, "memory/job", "pids", "unified", handed_down="")
    own = "9:name=systemd:/\n8:pids:/\n4:memory:/job\n1:cpu,cpuacct:/\n0::/"
    assert found(tmp_path, own, MEMORY, PIDS, UNIFIED.replace("cgroup rw", "cgroup/unified rw")) == [
        *(at / "memory/job", at / "pids")
    ]
    assert found(tmp_path, own, MEMORY) == []
    both = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory,pids"
    assert found(tmp_path, "4:memory,pids:/job", both) == [at / "memory/job"]


def test_version_2_is_preferred_to_version_1(tmp_path: Path) -> None:
    at = tree(tmp_path, "memory", "pids", "unified")
    unified = UNIFIED.replace("cgroup rw", "cgroup/unified rw")
    assert found(tmp_path, "8:pids:/\n4:memory:/\n0::/", MEMORY, PIDS, unified) == [at / "unified"]


def test_the_cpu_quota_is_the_least_of_our_groups_of_version_2(tmp_path: Path) -> None:
    at = tree(tmp_path, "pod", "pod/job")
    quota = partial(groups.cpu_quota, "0::/pod/job\n", UNIFIED, tmp_path)
    assert quota() == math.inf
    (at / "pod/job/cpu.max").write_text("max 100000\n")
    assert quota() == math.inf
    (at / "pod/cpu.max").write_text("250000 100000\n")
    assert quota() == 2.5
    (at / "pod/job/cpu.max").write_text("50000 100000\n")
    assert quota() == 0.5


def test_the_cpu_quota_of_version_1_is_of_the_hierarchy_of_cpus(tmp_path: Path) -> None:
    at = tree(tmp_path, "cpu,cpuacct", "cpu,cpuacct/job")
    mount = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
    quota = partial(groups.cpu_quota, "4:memory:/job\n1:cpu,cpuacct:/job\n", mount, tmp_path)
    for group, quota_us in (("", -1), ("job", 400_000)):
        (at / "cpu,cpuacct" / group / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
        (at / "cpu,cpuacct" / group / "cpu.cfs_period_us").write_text("200000\n")
    assert quota() == 2.0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folders_that_are_not_ours_to_write_are_left_alone(tmp_path: Path) -> None:
    at = tree(tmp_path, "job")
    at.chmod(0o555)
    assert found(tmp_path, "0::/job", UNIFIED) == []


@pytest.mark.parametrize("version", [1, 2])
def test_the_limits_are_written_to_the_files_that_are_there(tmp_path: Path, version: int) -> None:
    names = {
        1: ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "pids.max"],
        2: ["memory.max", "memory.swap.max", "pids.max"],
    }[version]
    for name in names:
        (tmp_path / name).touch()
    groups._bound(tmp_path, 4096, 7)
    written = [(tmp_path / name).read_text() for name in names]
    assert written == ["4096", "4096" if version == 1 else "0", "7"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
