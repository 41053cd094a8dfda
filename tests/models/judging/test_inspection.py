"""What a user's reward consists of: found by a judge, with the content that is executed, however it is loaded."""

import hashlib
import importlib.machinery
import os
import py_compile
import shutil
import sys
import sysconfig
import textwrap
import zipfile
from pathlib import Path

import pytest

from gradus.models.judging.inspection import Inspection, inspect
from gradus.models.judging.pool import JudgePool, UnpinnedModulesError
from gradus.models.rewards import resolve


def write(folder: Path, **files: str) -> Path:
    """Files by name, `__` for a slash; the folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def inspected(folder: Path) -> Inspection:
    return inspect(resolve(f"{folder}/mine.py:f", {}))


def names(folder: Path) -> set[str]:
    return set(inspected(folder).modules) - {"gradus_user_reward"}


def test_the_digests_are_those_of_the_files_and_the_caller_runs_nothing(tmp_path: Path) -> None:
    write(tmp_path, mine="import near_helper\ndef f(rows): return []", near_helper="V = 1", unrelated="V = 1")
    found = inspected(tmp_path)
    assert {name: module.sha256 for name, module in found.modules.items()} == {
        "gradus_user_reward": hashlib.sha256((tmp_path / "mine.py").read_bytes()).hexdigest(),
        "near_helper": hashlib.sha256(b"V = 1").hexdigest(),
    }
    assert found.modules["near_helper"].path == str(tmp_path / "near_helper.py")
    assert "near_helper" not in sys.modules
    assert found.packages == ()


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        ("def f(rows):\n    import a", {"a", "b"}),
        ("import a", {"a", "b"}),
        ("def f(rows):\n    from pkg import deep", {"pkg", "pkg.deep", "pkg.inner"}),
        ("def f(rows):\n    from pkg.deep import V", {"pkg", "pkg.deep", "pkg.inner"}),
        ("from pkg import deep", {"pkg", "pkg.deep", "pkg.inner"}),
        ("def f(rows):\n    import space.within", {"space.within"}),
        ("import importlib\ndef f(rows):\n    importlib.import_module('b')", {"b"}),
        ("import importlib\nimportlib.import_module('ab'[1:])", {"b"}),
        ("def f(rows):\n    __import__('b')", {"b"}),
        ("def f(rows):\n    import of_nobody, json, broken", {"broken"}),
        ("if False:\n    import b", {"b"}),
    ],
)
def test_modules_named_anywhere_are_found_with_what_they_name(tmp_path: Path, mine: str, expected: set[str]) -> None:
    write(
        tmp_path,
        mine=mine + "\ndef f2(rows): return []",
        a="def g():\n    import b",
        b="V = 1",
        broken="raise ValueError",
        pkg__deep="V = 1\ndef g():\n    from . import inner",
        pkg__inner="",
        space__within="",
    )
    (tmp_path / "pkg" / "__init__.py").touch()
    found = set(inspect(resolve(f"{tmp_path}/mine.py:f2", {})).modules)
    assert found == {"gradus_user_reward"} | expected


def test_a_module_loaded_from_a_path_is_found_and_two_of_one_name_are_told_apart(tmp_path: Path) -> None:
    load = """
        import importlib.util
        from pathlib import Path
        def load(file):
            spec = importlib.util.spec_from_file_location("plugin", Path(__file__).parent / file)
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
        load("one.py"); load("two.py"); load("one.py")
        def f(rows): return []
    """
    write(tmp_path, mine=load, one="V = 1", two="V = 2")
    assert names(tmp_path) == {"plugin", "plugin#2"}
    spec = resolve("mine.py:f", {}, sha256="00", modules={"plugin": "11", "plugin#2": "22"})
    assert [spec.has_pinned("plugin", digest) for digest in ("11", "22", "00")] == [True, True, False]


def test_an_archive_and_an_extension_module_are_found(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "many.zip", "w") as archive:
        archive.writestr("zipped.py", "V = 1")
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    extension = Path(sysconfig.get_config_var("DESTSHARED")) / f"_lsprof{suffix}"
    if not extension.exists():
        pytest.skip("this Python has no extension module to copy")
    shutil.copy(extension, tmp_path)
    write(
        tmp_path,
        mine="import sys\nsys.path.append(__file__.replace('mine.py', 'many.zip'))\nimport zipped, _lsprof\n"
        "def f(rows): return []",
    )
    found = inspected(tmp_path).modules
    assert found["zipped"].sha256 == hashlib.sha256((tmp_path / "many.zip").read_bytes()).hexdigest()
    assert found["_lsprof"].sha256 == hashlib.sha256(extension.read_bytes()).hexdigest()


def test_installed_packages_are_named_and_not_looked_into(tmp_path: Path) -> None:
    write(
        tmp_path,
        mine="import numpy\ndef f(rows):\n    import yaml.nodes, json, os.path\n    from gradus.data import errors",
    )
    assert inspected(tmp_path).packages == ("gradus", "numpy", "yaml")
    assert names(tmp_path) == set()


def test_bytecode_of_an_earlier_content_is_not_run(tmp_path: Path) -> None:
    write(tmp_path, mine="import helper\ndef f(rows): return [helper.V] * len(rows)", helper="V = 0.25")
    helper = tmp_path / "helper.py"
    py_compile.compile(str(helper))
    then = helper.stat()
    helper.write_text("V = 0.75")
    os.utime(helper, ns=(then.st_atime_ns, then.st_mtime_ns))
    with JudgePool(resolve(f"{tmp_path}/mine.py:f", {}), num_workers=1) as pool:
        assert [j.verdict.value for j in pool.judge([{"completion": "", "answer": None}])] == [0.75]


def test_a_pool_refuses_what_is_not_pinned_as_late_or_as_changed(tmp_path: Path) -> None:
    write(
        tmp_path,
        mine="import known\ndef f(rows):\n    __import__('la' + 'te')\n    return [1.0] * len(rows)",
        known="V = 1",
        late="V = 1",
    )
    found = {name: module.sha256 for name, module in inspected(tmp_path).modules.items()}
    own = found.pop("gradus_user_reward")
    rows = [{"completion": "", "answer": None}] * 3
    pinned = resolve(f"{tmp_path}/mine.py:f", {}, sha256=own, modules=found)
    with JudgePool(pinned) as pool, pytest.raises(UnpinnedModulesError) as caught:
        pool.judge(rows)
    assert (caught.value.late, caught.value.changed) == ({"late": str(tmp_path / "late.py")}, {})
    (tmp_path / "known.py").write_text("V = 2")
    with JudgePool(pinned) as pool, pytest.raises(UnpinnedModulesError) as caught:
        pool.judge(rows)
    assert (caught.value.late, caught.value.changed) == ({}, {"known": str(tmp_path / "known.py")})


def test_a_late_module_of_a_row_that_never_ends_is_seen(tmp_path: Path) -> None:
    write(tmp_path, mine="def f(rows):\n    __import__('la' + 'te')\n    while True: pass", late="V = 1")
    spec = resolve(f"{tmp_path}/mine.py:f", {}, sha256=inspected(tmp_path).modules["gradus_user_reward"].sha256)
    with (
        JudgePool(spec, num_workers=1, item_timeout_s=0.5) as pool,
        pytest.raises(UnpinnedModulesError, match="late"),
    ):
        pool.judge([{"completion": "", "answer": None}])
