"""Settings: what a result depends on is its identity, how it is got at is not."""

from pathlib import Path

import pytest
from pydantic import ConfigDict

from gradus.components.settings import Config
from gradus.data.errors import UsageError
from gradus.models.engines.settings import ServerConfig, VllmConfig
from gradus.models.templates import PromptConfig
from gradus.tasks.config.learning import UpdateConfig, WarmstartConfig
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.config.score import ScoreConfig
from gradus.tasks.config.settings import Home


def test_how_a_result_is_got_at_is_no_part_of_its_identity() -> None:
    plain = RolloutConfig()
    tuned = RolloutConfig(
        flush_s=1.0,
        max_failed_frac=0.5,
        vllm=VllmConfig(max_num_seqs=8, gpu_memory_utilization=0.5),
        server=ServerConfig(concurrency=2, retries=1, api_key_variable="MY_KEY"),
    )
    assert tuned.identified() == plain.identified()
    assert "concurrency" not in plain.identified()["server"]


LIMITS = {"max_age", "max_logp_diff", "max_zero_std_frac"}


def test_limits_of_gates_are_no_part_of_an_identity() -> None:
    strict = UpdateConfig(max_age=3, max_logp_diff=0.1, max_zero_std_frac=0.3)
    assert strict.identified() == UpdateConfig().identified()
    assert RolloutConfig(max_truncated_frac=0.1, max_failed_frac=0.5).identified() == RolloutConfig().identified()
    assert ScoreConfig(max_error_frac=0.5).identified() == ScoreConfig().identified()
    assert not LIMITS & set(UpdateConfig().identified())


def test_all_else_is_and_as_plain_values() -> None:
    assert RolloutConfig(top_k=5).identified() != RolloutConfig().identified()
    assert RolloutConfig(server=ServerConfig(model="m")).identified() != RolloutConfig().identified()
    assert UpdateConfig(device="cpu").identified() == UpdateConfig().model_dump(
        mode="json", exclude={"device", *LIMITS}
    )


def test_settings_of_prompts_are_part_of_an_identity_only_where_they_are_set() -> None:
    unset = RolloutConfig(prompt=PromptConfig(), stop=()).identified()
    assert not {"prompt", "stop"} & set(unset)
    # As it was written before there were such settings.
    assert RolloutConfig.model_validate(unset).identified() == unset
    asked = RolloutConfig(prompt=PromptConfig(template="Q: {question}"), stop=("\n",)).identified()
    assert asked == {**unset, "prompt": {"template": "Q: {question}"}, "stop": ["\n"]}
    assert "prompt" not in WarmstartConfig().identified()
    assert WarmstartConfig(prompt=PromptConfig(system="add")).identified()["prompt"] == {"system": "add"}


class Inheriting(UpdateConfig):
    """Settings with one more field; pydantic's reading of doc strings is switched on."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    extra: int = 1
    """The field that is added.

    With a second paragraph.
    """
    plain: int = 2


def test_doc_strings_of_fields_are_those_that_pydantic_reads() -> None:
    docs = Inheriting.field_docs()
    assert docs["extra"] == Inheriting.model_fields["extra"].description
    assert docs.keys() == {*UpdateConfig.field_docs(), "extra"}
    assert docs["lr"] == UpdateConfig.field_docs()["lr"]


def test_every_setting_has_a_doc_string_and_a_form_shows_it() -> None:
    def below(kind: type[Config]) -> set[type[Config]]:
        return {kind, *(found for each in kind.__subclasses__() for found in below(each))}

    ours = [kind for kind in below(Config) if kind.__module__.startswith("gradus.")]
    assert len(ours) > 20
    assert {kind.__name__ for kind in ours if kind.model_fields.keys() - kind.field_docs().keys()} <= {"Chosen"}
    shown = RolloutConfig.model_json_schema()["properties"]
    assert {name: entry["description"] for name, entry in shown.items()} == RolloutConfig.field_docs()


def test_a_home_below_the_users_own_folder_is_found_where_no_shell_has_expanded_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADUS_HOME", "~/lab")
    assert Home.from_environment().root == (tmp_path / "lab").resolve()
    monkeypatch.setenv("GRADUS_HOME", "~nobody-of-this-name/lab")
    with pytest.raises(UsageError, match="there is no such account; set GRADUS_HOME to another folder"):
        Home.from_environment()
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("GRADUS_HOME", "loop")
    with pytest.raises(UsageError, match="it is a link that leads to itself"):
        Home.from_environment()
