"""What differs between two identities is said by name: settings, files, code, libraries, seed."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradus.tasks.inspect.reasons import changed_inputs, differences

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


def test_a_file_that_only_one_side_names_follows_from_its_setting() -> None:
    mine = {"name": "other.py:grade", "weight": 1.0, "source_sha256": "cc", "modules": {"helpers": "bb"}}
    more = changed(config={**BASE["config"], "rewards": [*BASE["config"]["rewards"], mine]})
    assert differences(more, BASE) == [
        "the module helpers of a reward is new",
        "rewards.1.name = other.py:grade, before not set",
        "rewards.1.weight = 1.0, before not set",
    ]
    assert differences(BASE, more) == [
        "the module helpers of a reward is no longer used",
        "rewards.1.name is not set, before other.py:grade",
        "rewards.1.weight is not set, before 1.0",
    ]


leaves = st.sampled_from([0, 1, "a", None, True])
keys = st.sampled_from(["name", "source", "source_sha256", "modules", "libraries", "rewards", "0"])
configs = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


@given(configs, configs)
@settings(max_examples=200)
def test_any_two_identities_can_be_compared(new: Any, old: Any) -> None:
    differences({"config": new}, {"config": old})
    assert differences({"config": new}, {"config": new}) == []
