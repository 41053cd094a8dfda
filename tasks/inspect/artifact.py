"""One artifact by its name: what made it, of what, and what it holds."""

from typing import TypedDict

import pyarrow.parquet as pq

from gradus.data.lake.schema import TABLES
from gradus.data.lake.store import Ref, Store
from gradus.data.records import JsonObject
from gradus.tasks.stages.registry import installed


class ArtifactStory(TypedDict):
    """The answer of `gradus show ARTIFACT --json`; `made_of` are artifacts by role, `columns` types by name."""

    artifact: str
    stage: str
    rows: int
    bytes: int
    made_of: dict[str, list[str]]
    settings: JsonObject
    columns: dict[str, str]
    out: str


def describe(store: Store, ref: Ref) -> ArtifactStory:
    """Return the facts of an artifact; raise CorruptArtifactError for one that is damaged."""
    manifest = store.manifest(ref)
    installed()  # their tables are the lake's
    shards = manifest.shards if ref.table in TABLES else []
    columns = pq.read_schema(store.verified(ref, shards[:1])[0]) if shards else []
    return {
        "artifact": str(ref),
        "stage": str(manifest.identity.get("stage", "")),
        "rows": manifest.rows if shards else 0,
        "bytes": sum(entry.bytes for entry in manifest.files),
        "made_of": manifest.parents,
        "settings": manifest.config,
        "columns": {field.name: str(field.type) for field in columns},
        "out": str(store.path(ref)),
    }
