"""One MLflow database for all tests that need one: creating it takes most of their time."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def mlflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with an MLflow database; tests keep apart by the names of their runs."""
    from tasks.tracking import ensure_database

    root = tmp_path_factory.mktemp("gradus-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        assert ensure_database(root) == f"sqlite:///{root}/mlflow/mlflow.db"
    return root
