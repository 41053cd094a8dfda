"""A user's component that raises, or returns what its kind does not: the sentence has its name, file and line."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gradus.components import KINDS
from gradus.components.chosen import (
    AdvantageConfig,
    AggregationConfig,
    Chosen,
    CorrectionConfig,
    FilterConfig,
    HintStrategyConfig,
    LossConfig,
    MeasureConfig,
    OptimizerConfig,
    RankingConfig,
    SamplerConfig,
    ScheduleConfig,
    ShapeConfig,
    TrackerConfig,
    WaveConfig,
    WeightConfig,
)
from gradus.data.curation.candidates import Candidates
from gradus.data.curation.round import round_of
from gradus.data.errors import BadInputError
from gradus.data.schedules.progress import Progress
from gradus.models.objectives.rows import Rows
from gradus.tasks.identity.component_call import RETURNS
from gradus.tasks.identity.loading import load

POOL = Candidates(pa.table({"problem_id": ["a", "b", "c"]}))
ROUND = round_of(pa.table({"problem_id": ["a"], "group": [0]}))
TOKENS = torch.zeros(5)
ROWS = Rows({"reward": torch.zeros(2), "group": torch.zeros(2)}, {"now.logp": TOKENS}, torch.tensor([3, 2]))
PAIR = "torch.zeros({0}), {{'m': torch.zeros({1})}}"
CASES: list[tuple[type[Chosen], tuple[Any, ...], str, dict[str, str]]] = [
    (
        FilterConfig,
        (POOL,),
        "Selection(np.array([0, 1, 0]), ('no',))",
        {
            "[True]": "list of shape (1,)",
            "Selection(np.array([0]), ())": "Selection",
            "Selection(['a', 'b', 'c'], ())": "Selection",
            "None": "None",
        },
    ),
    (
        RankingConfig,
        (POOL,),
        "np.zeros(3)",
        {"np.zeros(2)": "ndarray of shape (2,)", "'abc'": "str of shape (3,)", "['a', 'b', 'c']": "list of shape (3,)"},
    ),
    (
        SamplerConfig,
        (POOL, 2, np.random.default_rng(0)),
        "Draw(np.array([2, 0]), np.ones(2), np.zeros(2, dtype=bool))",
        {
            "np.array([0])": "ndarray of shape (1,)",
            "Draw(np.array([1, 1]), np.ones(2), np.zeros(2, dtype=bool))": "Draw",
            "Draw(None, np.ones(1), np.zeros(1, dtype=bool))": "Draw",
            "Draw(np.array([3]), np.ones(1), np.zeros(1, dtype=bool))": "Draw",
        },
    ),
    (HintStrategyConfig, ({"solution": "x"}, 0.5), "'first'", {"3": "int", "b'x'": "bytes"}),
    (WaveConfig, (ROUND, None), "arguments[0].plan(like=[0])", {"3": "int", "[]": "list of shape (0,)"}),
    (TrackerConfig, (None, ROUND), "{'problem_id': ['a']}", {"3": "int", "[]": "list of shape (0,)"}),
    (MeasureConfig, (ROWS, None), "{'logp': np.ones(2)}", {"3": "int", "np.ones(2)": "ndarray of shape (2,)"}),
    (ShapeConfig, (ROWS,), "{'taken': np.ones(2, bool)}", {"None": "None", "[1]": "list of shape (1,)"}),
    (AdvantageConfig, (ROWS,), "torch.zeros(2)", {"torch.zeros(3)": "Tensor of shape (3,)", "[0.0, 0.0]": "list of"}),
    (AdvantageConfig, (ROWS,), "torch.zeros(5)", {"torch.zeros(4)": "Tensor of shape (4,)"}),
    (
        LossConfig,
        (ROWS,),
        PAIR.format(5, 5),
        {
            "torch.zeros(5)": "Tensor of shape (5,)",
            PAIR.format(2, 5): "(Tensor of shape (2,), dict of shape (1,))",
            "torch.zeros(5), torch.zeros(5), {}": "(Tensor of shape (5,), Tensor of shape (5,), dict of shape (0,))",
            PAIR.format(5, 4): "(Tensor of shape (5,), dict of shape (1,))",
        },
    ),
    (AggregationConfig, (ROWS,), "torch.zeros(5)", {"torch.zeros(())": "Tensor of shape ()", "0.5": "float"}),
    (CorrectionConfig, (ROWS,), PAIR.format(5, 5), {PAIR.format(1, 5): "(Tensor of shape (1,), dict"}),
    (WeightConfig, (ROWS,), PAIR.format(5, 5), {"None": "None"}),
    (ScheduleConfig, (Progress(1),), "0.5", {"None": "None", "float('inf')": "float", "'1'": "str of shape (1,)"}),
    (OptimizerConfig, ([], None), "torch.optim.SGD([torch.zeros(1)], 0.1)", {"None": "None"}),
]


def component(config: type[Chosen], folder: Path, body: str) -> Any:
    """Load a component whose function returns, or is, an expression on its 8th line."""
    file = folder / "mine.py"
    file.write_text(
        "import numpy as np\nimport torch\n"
        "from gradus.data.curation.results import Draw, Selection\n\n\n\n"
        f"def own(*arguments):\n    return {body}\n"
    )
    return load(config.model_validate({"name": f"{file}:own"}))


def test_every_kind_has_its_words() -> None:
    assert {*RETURNS, "reward"} == set(KINDS)
    assert {config.kind for config, *_ in CASES} == set(RETURNS)


@pytest.mark.parametrize(("config", "arguments", "right", "wrong"), CASES)
def test_a_wrong_answer_is_named_with_what_the_kind_returns(
    tmp_path: Path, config: type[Chosen], arguments: tuple[Any, ...], right: str, wrong: dict[str, str]
) -> None:
    component(config, tmp_path, right)(*arguments)
    for body, shown in wrong.items():
        with pytest.raises(BadInputError) as found:
            component(config, tmp_path, body)(*arguments)
        assert found.value.message.startswith(f"{config.kind} own (mine.py line 7) returned {shown}")
        assert re.search(rf"; an? {config.kind} returns ", found.value.message)


@pytest.mark.parametrize(("config", "arguments", "right", "wrong"), CASES)
def test_an_error_is_named_with_the_line_that_raised_it(
    tmp_path: Path, config: type[Chosen], arguments: tuple[Any, ...], right: str, wrong: dict[str, str]
) -> None:
    body = "[1 / 0 for _ in 'x']"
    with pytest.raises(BadInputError) as found:
        component(config, tmp_path, body)(*arguments)
    file = tmp_path / "mine.py"
    assert found.value.message == f"{config.kind} own failed at {file} line 8: ZeroDivisionError: division by zero"


@pytest.mark.parametrize("error", ["MemoryError()", "torch.OutOfMemoryError('no memory')"])
def test_memory_that_runs_out_is_for_the_update_to_answer(tmp_path: Path, error: str) -> None:
    body = f"(_ for _ in ()).throw({error})"
    with pytest.raises((MemoryError, torch.OutOfMemoryError)):
        component(LossConfig, tmp_path, body)(ROWS)


def test_a_component_that_exits_is_an_error_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"loss own failed at .*mine\.py line 8: SystemExit: 3"):
        component(LossConfig, tmp_path, "(_ for _ in ()).throw(SystemExit(3))")(ROWS)


def test_a_file_that_fails_to_load_is_named_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def own(batch):\n    return batch\n\n\nLIMIT = {}['n']\n")
    with pytest.raises(BadInputError, match=r"mine\.py line 5 fails to load: KeyError: 'n'"):
        load(LossConfig(name=f"{file}:own"))
