"""The model card of a checkpoint: settings that hold Markdown stay text."""

from typing import Any

from gradus.data.lake.manifest import Manifest
from gradus.data.lake.store import Ref
from gradus.tasks.inspect.exchange.checkpoint import model_card

HOSTILE = "``` \n# Heading\n![](http://127.0.0.1/x) <script>alert(1)</script> | `"


def outside_code(card: str) -> str:
    """The card without its blocks of code and without code in its lines."""
    kept, fence = [], ""
    for line in card.splitlines():
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if not fence and len(ticks) >= 3:
            fence = ticks
        elif fence and line == fence:
            fence = ""
        elif not fence:
            kept.append("".join(line.split("`")[::2]))
    assert not fence
    return "\n".join(kept)


def test_nothing_of_a_setting_is_read_as_markdown() -> None:
    recipe: dict[str, Any] = {"problems": HOSTILE, "policy": HOSTILE, "rollout": {"prompt": {"template": HOSTILE}}}
    recipe["evaluate"] = {"suites": [{"name": "heldout", "problems": HOSTILE}]}
    figures: Any = {"pass_at": {"1": {"value": 0.25, "low": 0.125, "high": 0.5}}}
    ref = Ref("checkpoints", "0" * 32)
    manifest = Manifest(table="checkpoints", digest=ref.digest, schema_version=2, files=())
    made = {"run": "tiny-1", "round": 3, "recipe": recipe, "evaluations": {"heldout": figures}, "main": None}
    text = outside_code(model_card(ref, manifest, made))
    for mark in ("Heading", "![]", "<script>", "alert"):
        assert mark not in text
    assert "after round 3" in text
    assert "| pass@1 | 0.2500 | 0.1250 to 0.5000 |" in text


def test_a_checkpoint_that_no_run_here_made_has_its_own_settings() -> None:
    ref = Ref("checkpoints", "0" * 32)
    manifest = Manifest(table="checkpoints", digest=ref.digest, schema_version=2, config={"lr": 0.5}, files=())
    card = model_card(ref, manifest, None)
    assert '"lr": 0.5' in card
    assert "## Evaluation" not in card
