"""The teller: reads a run's journal and tells MLflow. The only importer of mlflow, in a process of its own.

    python -m tasks.tracking RUN_FOLDER --owner PID     # follows a living run, ends with it
    python -m tasks.tracking RUN_FOLDER --drain         # tells what is there and ends

Told exactly once, whatever is killed: the cursor is saved after every event; the first event after a start is looked up
by its name before anything is created (tag gradus.attempt); a metric carries the time of its journal row, and MLflow
keeps one point for each name, time, step and value. While the tracker is down the journal waits.
Left out on purpose: rollouts beyond a few samples (Parquet holds them all) and the weights (logged by reference).
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Before MLflow is imported: traces are written when they are made (asynchronous ones die with the process), a dead
# server is noticed at once instead of after minutes of retries (this file retries), and nothing is reported elsewhere.
for _name, _value in {
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "GIT_PYTHON_REFRESH": "quiet",
}.items():
    os.environ.setdefault(_name, _value)

import mlflow
import mlflow.db
from mlflow import MlflowClient
from mlflow.entities import (
    AssessmentSource,
    AssessmentSourceType,
    Dataset,
    DatasetInput,
    InputTag,
    LifecycleStage,
    Metric,
    NoOpSpan,
    Param,
    RunStatus,
    RunTag,
)
from mlflow.exceptions import MlflowException

from data.errors import CorruptArtifactError
from data.manifest import FILE_NAME, read_manifest
from data.store import Ref, Store
from tasks.attempt import REPORT
from tasks.journal import EVENTS, Json, read_lines, read_metric_rows
from tasks.report import table_md, visible, write_report
from tasks.settings import Home
from tasks.tracking_loop import Follower, RefusedError, UnreachableError
from tasks.tracking_names import (
    MAX_TAG_CHARS,
    METRICS_PER_CALL,
    PARAMS_PER_CALL,
    batches,
    cut,
    flat_params,
    metric_name,
    model_name,
    run_metric_name,
)
from tasks.tracking_state import State
