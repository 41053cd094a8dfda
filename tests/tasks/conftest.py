"""What tests of stages share: a store, judges that end, and one MLflow database, whose creation is slow."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gradus.data.lake.store import Store
from gradus.tasks.host.processes import Warm
from gradus.tasks.stages.score.stage import JudgePools
from tests.conftest import copy_databases


@pytest.fixture(scope="session")
def mlflow_home(databases: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with an MLflow database, a copy if there is one; tests keep apart by the names of their runs."""
    from gradus.tasks.tracking.sending import ensure_database

    root = tmp_path_factory.mktemp("gradus-home")
    copy_databases(databases, root)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert ensure_database(root) == f"sqlite:///{root}/mlflow/mlflow.db"
    return root


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "lake")


@pytest.fixture
def warm() -> Iterator[Warm]:
    """What outlives a job in a warm worker; its judges are ended."""
    kept = Warm()
    yield kept
    for pool in kept.of(JudgePools).values():
        pool.close()
