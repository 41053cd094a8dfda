"""What a user's file consists of: read from its text, and compared with the content that a process executes."""

import hashlib
import importlib.machinery
import os
import py_compile
import shutil
import sys
import sysconfig
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gradus.components.user_modules import Module, modules_of
from gradus.models.judging.pool import JudgePool, JudgeStartError
from gradus.models.rewards import resolve

ROWS = [{"completion": "", "answer": None}] * 3
FAR = {"far", "near_far", "near_far.deep"}


def write(folder: Path, **files: str) -> Path:
    """Files by name, `__` for a slash; the folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return folder


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def names(folder: Path) -> set[str]:
    return set(modules_of(folder / "mine.py")[0])


def test_the_digests_are_those_of_the_files_and_nothing_is_run(tmp_path: Path) -> None:
    write(tmp_path, mine="import near_helper\nraise SystemExit", near_helper="V = 1", unrelated="V = 1")
    found, packages = modules_of(tmp_path / "mine.py")
    assert found == {"near_helper": Module("near_helper", str(tmp_path / "near_helper.py"), sha256(b"V = 1"))}
    assert "near_helper" not in sys.modules
    assert packages == set()


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
        ("import importlib\nimportlib.import_module('ab'[1:])", set()),
        ("import importlib\nmodules = ['b']\nimportlib.import_module('ab'[1:])", {"b"}),
        ("import sys\nsys.path.append('lib')\nimport far\nmodules = ['lib/far.py', 'of_nobody']", FAR),
        ("def f(rows):\n    __import__('b')", {"b"}),
        ("def f(rows):\n    import of_nobody, json, broken", {"broken"}),
        ("if False:\n    import b", {"b"}),
        ("modules = [None, '', 'a b', '../', 'b.']", set()),
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
        lib__far="import near_far.deep",
        lib__near_far__deep="",
    )
    for package in ("pkg", "lib/near_far"):
        (tmp_path / package / "__init__.py").touch()
    assert names(tmp_path) == expected


def test_an_extension_module_is_found(tmp_path: Path) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    extension = Path(sysconfig.get_config_var("DESTSHARED")) / f"_lsprof{suffix}"
    if not extension.exists():
        pytest.skip("this Python has no extension module to copy")
    shutil.copy(extension, tmp_path / f"own{suffix}")
    write(tmp_path, mine="import own")
    assert modules_of(tmp_path / "mine.py")[0]["own"].sha256 == sha256(extension.read_bytes())


def test_installed_packages_are_named_and_not_looked_into(tmp_path: Path) -> None:
    write(
        tmp_path,
        mine="import numpy\ndef f(rows):\n    import yaml.nodes, json, os.path\n    from gradus.data import errors",
    )
    assert modules_of(tmp_path / "mine.py") == ({}, {"gradus", "numpy", "yaml"})


def judged(folder: Path, **pins: Any) -> list[float | None]:
    with JudgePool(resolve(f"{folder}/mine.py:f", {}, **pins), num_workers=1, item_timeout_s=1.0) as pool:
        return [each.verdict.value for each in pool.judge(ROWS)]


def pins_of(folder: Path) -> dict[str, Any]:
    modules = {name: module.sha256 for name, module in modules_of(folder / "mine.py")[0].items()}
    return {"sha256": sha256((folder / "mine.py").read_bytes()), "modules": modules}


def test_bytecode_of_an_earlier_content_is_not_run(tmp_path: Path) -> None:
    write(tmp_path, mine="import helper\ndef f(rows): return [helper.V] * len(rows)", helper="V = 0.25")
    helper = tmp_path / "helper.py"
    py_compile.compile(str(helper))
    then = helper.stat()
    helper.write_text("V = 0.75")
    os.utime(helper, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert judged(tmp_path) == [0.75] * 3


@pytest.mark.parametrize("loop", ["return [1.0] * len(rows)", "while True: pass"])
def test_a_judge_refuses_a_module_that_is_not_pinned_and_one_that_was_changed(tmp_path: Path, loop: str) -> None:
    write(
        tmp_path,
        mine=f"import known\ndef f(rows):\n    __import__('la' + 'te')\n    {loop}",
        known="V = 1",
        late="V = 1",
    )
    with pytest.raises(JudgeStartError, match=r'mine\.py loaded late\.py by a name .* write modules = \["late"\] in'):
        judged(tmp_path, **pins_of(tmp_path))
    pins = pins_of(tmp_path)
    (tmp_path / "known.py").write_text("V = 2")
    with pytest.raises(JudgeStartError, match=r"known\.py was changed while the command ran"):
        judged(tmp_path, **pins)


def test_a_module_of_another_folder_is_refused_until_its_file_is_declared(tmp_path: Path) -> None:
    mine = "import sys\nsys.path.append(__file__[:-7] + 'lib')\nimport far\ndef f(rows): return [far.V] * len(rows)\n"
    write(tmp_path, mine=mine, lib__far="V = 0.5")
    with pytest.raises(JudgeStartError, match=r'write modules = \["lib/far\.py"\] in mine\.py'):
        judged(tmp_path, **pins_of(tmp_path))
    write(tmp_path, mine=mine + "modules = ['lib/far.py']\n")
    assert judged(tmp_path, **pins_of(tmp_path)) == [0.5] * 3
