"""The doctor: what it says of this machine is true, and every no says what to do."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gradus.models.sandbox import launchers
from gradus.tasks.inspect import doctor
from gradus.tasks.inspect.doctor import checks
from tests.sandboxes import needs_sandbox


def test_every_check_of_this_machine_is_made_and_every_no_has_a_cure(tmp_path: Path) -> None:
    found = checks(tmp_path)
    assert [c["name"] for c in found if not c["ok"] and not c["cure"]] == []
    assert [c["name"] for c in found if c["ok"] and c["cure"]] == []
    names = {c["name"] for c in found}
    assert {"Python 3.11 or newer", "torch", "GPU", "vLLM", "a sandbox for code", "MLflow", "Prefect"} <= names
    by_name = {c["name"]: c for c in found}
    assert by_name["torch"]["ok"]
    assert by_name["MLflow"]["cure"] == "call `gradus setup`"
    assert found[0].keys() == {"name", "ok", "detail", "cure"}


def test_the_doctor_loads_no_heavy_library() -> None:
    code = "import sys, gradus.tasks.inspect.doctor; print({'torch', 'mlflow', 'prefect'} & set(sys.modules))"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_an_old_python_is_a_no() -> None:
    assert not doctor.python((3, 10, 9))["ok"]
    assert doctor.python((3, 11, 0))["ok"]


def test_a_package_that_is_not_at_its_pin_is_named(tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# comment\npytest==0.0.1\nnumpy==9.9 ; python_version > '3'\nnot-installed-here==1.0\n")
    found = doctor.pins(constraints)
    assert not found["ok"]
    assert "pytest" in found["detail"]
    assert "instead of 0.0.1" in found["detail"]
    assert "instead of 9.9" in found["detail"]
    assert "not-installed-here" not in found["detail"]
    assert not doctor.pins(tmp_path / "absent.txt")["ok"]


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = taken.getsockname()[1]
        found = doctor.port(number, "MLflow")
    assert (found["ok"], found["detail"]) == (False, "in use")
    assert "--mlflow-port" in found["cure"]
    assert doctor.port(number, "MLflow")["ok"]


def test_a_tracker_is_there_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert not doctor.tracker(tmp_path)["ok"]
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "mlflow.db").touch()
    assert doctor.tracker(tmp_path)["ok"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed.getsockname()[1]}")
        assert "unset MLFLOW_TRACKING_URI" in doctor.tracker(tmp_path)["cure"]


def test_a_workflow_server_that_is_named_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert doctor.workflow()["ok"]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/api")
        assert "unset PREFECT_API_URL" in doctor.workflow()["cure"]


@needs_sandbox
def test_without_a_sandbox_the_doctor_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = doctor.sandbox()
    assert found["ok"]
    assert found["detail"].endswith((", in a cgroup", ", no cgroup can be made"))
    monkeypatch.setattr(launchers, "BACKENDS", (launchers.Bubblewrap,))
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor.sandbox()
    assert (found["ok"], found["detail"]) == (False, "bubblewrap: bwrap is not installed")
    assert "install bubblewrap" in found["cure"]


def test_a_full_disk_is_a_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    assert doctor.disk(tmp_path / "not" / "there")["detail"].endswith(f"free at {tmp_path}")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    found = doctor.disk(tmp_path)
    assert not found["ok"]
    assert "GRADUS_HOME" in found["cure"]
