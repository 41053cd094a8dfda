"""Folders of rollouts and of policies from another home, and a file outside of both that must not change."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from gradus.data.lake.store import Store
from gradus.tasks.preflight.checks import SAMPLES

Body = dict[str, Any]
JARGON = re.compile(r"\b\w+(?:Error|Exception)\b|Traceback|pydantic|Input should|\[type=|\[Errno|embedded null")
CANARY = b"alias ls='ls --color'\n"
DIGEST = "ab" * 16
ROWS = pa.table({"rollout_id": ["r"], "problem_id": ["p"], "completion": ["2"], "answer": ["2"]})


def sealed(body: Body) -> bytes:
    """A manifest with the digest of itself, as anybody can compute it."""
    body = {**body, "sha256": ""}
    text = json.dumps(body, sort_keys=True, indent=1) + "\n"
    body["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    return (json.dumps(body, sort_keys=True, indent=1) + "\n").encode()


class Place:
    """A home, a file beside it that nothing may touch, and gifts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.canary = root / "canary"
        self.canary.write_bytes(CANARY)
        self.home = root / "home"
        self.gift = root / "gift"
        self.rows = root / "rows.jsonl"
        self.rows.write_text(json.dumps(ROWS.to_pylist()[0]) + "\n")
        (root / "scores.jsonl").write_text('{"rollout_id": "r", "problem_id": "p", "reward": 1.0}\n')

    def give(self, change: Callable[[Body], Body] | None = None) -> Path:
        """Rollouts as another lake has them, their manifest changed and sealed again."""
        other = Store(self.root / "theirs")
        shutil.copytree(other.path(other.put("rollouts", ROWS)), self.gift)
        if change is not None:
            manifest = self.gift / "_manifest.json"
            manifest.write_bytes(sealed(change(json.loads(manifest.read_bytes()))))
        return self.gift

    def give_policy(self) -> Path:
        """A policy as a checkpoint of another lake."""
        other = Store(self.root / "theirs")
        shutil.copytree(other.path(other.adopt(SAMPLES / "policy")), self.gift)
        return self.gift

    def untouched(self) -> bool:
        """Whether the file is as it was."""
        return self.canary.read_bytes() == CANARY
