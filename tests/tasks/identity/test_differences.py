"""What differs between two identities is said by name: settings, files, code, libraries, seed."""

from typing import Any

import pytest

from gradus.tasks.identity.differences import changed_inputs, differences

BASE: dict[str, Any] = {
    "stage": "score",
    "version": 2,
    "seed": 0,
    "code": {"shared/store": "1", "reward/math": "1", "library/math-verify": "0.8"},
    "config": {
        "item_timeout_s": 5.0,
        "rewards": [{"name": "my.py:grade", "weight": 1.0, "source_sha256": "aa", "modules": {"helpers": "bb"}}],
    },
    "parents": {"rollouts": ["rollouts:1"], "problems": ["problems:1"]},
}


def changed(**parts: Any) -> dict[str, Any]:
    return {**BASE, **parts}


def reward(**parts: Any) -> dict[str, Any]:
    config: dict[str, Any] = BASE["config"]
    return changed(config={**config, "rewards": [{**config["rewards"][0], **parts}]})


@pytest.mark.parametrize(
    ("new", "phrase"),
    [
        (changed(config={**BASE["config"], "item_timeout_s": 9.0}), "item_timeout_s = 9.0, before 5.0"),
        (changed(config={**BASE["config"], "max_chars": 10}), "max_chars = 10, before not set"),
        (changed(seed=4), "seed = 4, before 0"),
        (changed(version=3), "gradus computes this stage otherwise since its version 3 (before 2)"),
        (
            changed(code={**BASE["code"], "reward/math": "2"}),
            "gradus computes reward math otherwise since its version 2 (before 1)",
        ),
        (
            changed(code={**BASE["code"], "library/math-verify": "0.9"}),
            "math-verify 0.9 is installed, before 0.8",
        ),
        (reward(source_sha256="cc"), "the content of the file my.py:grade changed"),
        (reward(modules={"helpers": "dd"}), "the module helpers of a reward changed"),
        (reward(modules={"helpers": "bb", "more": "ee"}), "the module more of a reward is new"),
        (reward(weight=0.5), "rewards.0.weight = 0.5, before 1.0"),
    ],
)
def test_one_difference_is_one_phrase(new: dict[str, Any], phrase: str) -> None:
    assert differences(new, BASE) == [phrase]
    assert changed_inputs(new, BASE) == []


def test_a_component_that_only_one_side_names_follows_from_its_setting() -> None:
    new = reward(name="exact")
    new["code"] = {"shared/store": "1", "reward/exact": "1", "library/math-verify": "0.8"}
    assert differences(new, BASE) == ["rewards.0.name = exact, before my.py:grade"]


def test_inputs_are_compared_by_role() -> None:
    new = changed(parents={"rollouts": ["rollouts:2"], "problems": ["problems:1"]})
    assert differences(new, BASE) == []
    assert changed_inputs(new, BASE) == ["rollouts"]
    assert differences(BASE, BASE) == changed_inputs(BASE, BASE) == []
