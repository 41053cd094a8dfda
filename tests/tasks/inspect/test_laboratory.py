"""The figures of a laboratory from stored gradients of two numbers: angles, rounds without a pull, what is the same."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from gradus.data.lake.schema import GRADIENTS as ROWS
from gradus.data.lake.schema import HALVES, HALVES_FILE
from gradus.data.lake.store import Ref, Store
from gradus.flows.console.study_tables import render_laboratory
from gradus.tasks.inspect.laboratory import Cell, keep_laboratory, laboratory

GRADIENTS = {
    "none": [(3.0, 4.0), (0.0, 0.0), (1.0, 0.0)],
    "same": [(3.0, 4.0), (0.0, 0.0), (1.0, 0.0)],
    "turned": [(4.0, -3.0), (0.0, 0.0), (1.0, 1.0)],
    "less_often": [(3.0, 4.0), (0.0, 0.0), (0.0, 0.0)],
    "never": [(0.0, 0.0), (0.0, 0.0), (0.0, 0.0)],
}


def cell(store: Store, method: str, round_: int) -> Cell:
    half = np.array(GRADIENTS[method][round_], np.float32) / 2
    ref = Ref("gradients", hashlib.sha256(f"{method} {round_}".encode()).hexdigest()[:32])
    writer = store.writer(ref)
    writer.write_table(ROWS.arrow.empty_table())
    writer.write_file(HALVES_FILE, save(dict.fromkeys(HALVES, half)))
    writer.commit()
    return {
        "method": method,
        "run": "r",
        "round": round_,
        "age": 0,
        "artifact": str(ref),
        "seconds": 1.0,
        "metrics": {},
    }  # type: ignore[return-value]


def test_a_round_in_which_a_method_does_not_pull_has_no_angle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By hand: (3, 4) and (4, -3) are at right angles, (1, 0) and (1, 1) at 45 degrees; the mean is 0.5 / sqrt(2)."""
    store = Store(tmp_path / "lake")
    found = laboratory(store, [cell(store, name, at) for name in GRADIENTS for at in range(3)], [], [])
    by_name = {each["method"]: each for each in found["methods"]}
    assert found["cosines"][0][0] == pytest.approx(1.0)
    assert by_name["turned"]["cosine"] == pytest.approx(0.5 / np.sqrt(2))
    assert by_name["less_often"]["cosine"] == pytest.approx(1.0)
    assert by_name["never"]["cosine"] is None
    same_as = {name: each["same_as"] for name, each in by_name.items()}
    assert same_as == {"none": "", "same": "none", "turned": "", "less_often": "", "never": ""}
    render_laboratory(found)
    assert "+0.35" in capsys.readouterr().out
    (tmp_path / "kept").mkdir()
    keep_laboratory(found, tmp_path / "kept")
