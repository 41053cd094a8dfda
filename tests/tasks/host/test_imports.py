"""Imports that leave out what nobody needs: the same answers, and everything as it was afterwards."""

import gc
import json
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from gradus.data.lake.store import Store
from gradus.tasks.host.libraries import Distributions, lean_imports
from tests.tasks.runtime.test_attempt import REF, job


def test_the_distribution_of_a_package_is_found_by_its_name_or_by_its_files() -> None:
    found, every = Distributions(), metadata.packages_distributions()
    assert found["numpy"] == ["numpy"]
    assert found["yaml"] == every["yaml"]  # of another name than its distribution, PyYAML
    assert found.get("no_such_package", []) == []
    assert (len(found), set(found)) == (len(every), set(every))


def test_everything_is_as_before_once_the_imports_are_done() -> None:
    before = metadata.packages_distributions
    with lean_imports("no_such_module") as end:
        assert not gc.isenabled()
        assert metadata.packages_distributions is not before
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            __import__("no_such_module")
        end()
        assert gc.isenabled()
        assert metadata.packages_distributions is before
    assert "no_such_module" not in sys.modules


def test_transformers_knows_the_same_versions_by_the_short_list() -> None:
    code = (
        "from gradus.tasks.host.libraries import lean_imports\n"
        "from importlib import metadata\n"
        "with lean_imports():\n"
        "    from transformers.utils import import_utils as found\n"
        "for name in ('torch', 'safetensors', 'PIL', 'yaml', 'accelerate'):\n"
        "    exists, version = found._is_package_available(name, return_version=True)\n"
        "    whole = metadata.packages_distributions()\n"
        "    assert not exists or version == metadata.version(whole.get(name, [name])[0]), name\n"
        "assert found._is_package_available('torch')[0]\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)


def test_nothing_is_reported_as_leaked_by_what_was_imported(tmp_path: Path) -> None:
    code = (
        "from gradus.tasks.host.libraries import lean_imports\n"
        "with lean_imports():\n"
        "    import duckdb\n"
        "duckdb.sql('select 1').fetchall()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, check=True)
    assert done.stderr == b""


def test_arrow_imports_pandas_for_who_asks_for_it_alone() -> None:
    code = (
        "import sys\n"
        "from gradus.tasks.host.libraries import lean_imports\n"
        "with lean_imports('pandas'):\n"
        "    pass\n"
        "import pyarrow as pa\n"
        "table = pa.table({'a': pa.array([1.0, None], from_pandas=True)})\n"
        "assert 'pandas' not in sys.modules\n"
        "frame = table.to_pandas()\n"
        "assert 'pandas' in sys.modules\n"
        "assert pa.Table.from_pandas(frame, preserve_index=False).equals(table)\n"
        "assert pa.array(frame['a']).null_count == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)


def test_a_stage_of_a_training_whose_inputs_are_there_imports_no_pytorch(tmp_path: Path) -> None:
    todo = vars(replace(job(tmp_path), restores=True))
    code = (
        "import json, sys\n"
        "from gradus.tasks.runtime.calls import execute\n"
        "from gradus.tasks.host.processes import Warm\n"
        "execute(json.loads(sys.argv[1]), Warm(), lambda *_: None)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, json.dumps(todo)], cwd=Path(__file__).parents[3], check=True)
    assert Store(tmp_path).find(REF) is not None
