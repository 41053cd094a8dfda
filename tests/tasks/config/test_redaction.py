"""Secrets: hidden in texts in every form they may take, refused in settings and arguments, never taken for others."""

import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gradus.components.settings import credentials_in
from gradus.data.errors import UsageError
from gradus.tasks.config.curation import IngestConfig
from gradus.tasks.config.redaction import hide, refuse_credentials
from gradus.tasks.config.rollout import RolloutConfig
from gradus.tasks.preflight.access import ask_mlflow, mlflow_words, prefect_answer


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("401 for https://ann:hunter22@host/x", "401 for https://***@host/x"),
        ("git+https://ghp_123@host", "git+https://***@host"),
        ("postgresql://u:p@ss@db/x", "postgresql://***@db/x"),
        ("http://h/v1?api_key=abc123&x=1", "http://h/v1?api_key=***&x=1"),
        ("http://h/v1?x=1&X-Amz-Signature=ab%2F", "http://h/v1?x=1&X-Amz-Signature=***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("{'Authorization': 'Basic YW5uOmh1bnRlcg=='}", "{'Authorization': 'Basic ***'}"),
        (
            "no secret: ann@host, org/model@abc, http://h?max_tokens=3",
            "no secret: ann@host, org/model@abc, http://h?max_tokens=3",
        ),
    ],
)
def test_credentials_are_hidden_whatever_the_environment(text: str, shown: str) -> None:
    assert hide(text) == shown


@given(secret=st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Z")), min_size=12, max_size=30))
def test_a_secret_of_the_environment_is_hidden_in_every_form(secret: str) -> None:
    # Read as headers by name, or as a login; a path of a file that is there is no secret.
    if secret.startswith(("{", "Basic", "/", "~", ".")):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_USERNAME", "ann")
        patch.setenv("MLFLOW_TRACKING_PASSWORD", secret)
        login = base64.b64encode(f"ann:{secret}".encode()).decode()
        for form in (secret, quote(secret, safe=""), json.dumps(secret), repr(secret), login):
            shown = hide(f"it said <{form}>.")
            assert form not in shown
            assert shown.startswith("it said <")


def test_a_short_secret_is_hidden_where_it_stands_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "pass")
    assert hide("the password pass, (pass)") == "the password ***, (***)"
    for harmless in ("true", "abc", "/etc/passwd"):
        monkeypatch.setenv("SOME_PASSWORD", harmless)
        assert hide(f"is {harmless} said") == f"is {harmless} said"


def test_a_variable_that_settings_may_name_holds_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_LLM", "qwertz123456")
    assert hide("qwertz123456") == "qwertz123456"
    monkeypatch.setenv("GRADUS_KEY_VARIABLES", "OTHER, OUR_LLM")
    assert hide("qwertz123456") == "***"


def test_headers_of_a_client_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_CLIENT_CUSTOM_HEADERS", '{"X-Access": "cloudflare-99"}')
    assert hide("sent cloudflare-99") == "sent ***"


@pytest.mark.parametrize("text", ["https://ann:pw@h/v1", "https://tok@h/v1", "https://h/v1?api_key=k", "s3://k:s@b/x"])
def test_settings_that_hold_credentials_are_refused_and_not_repeated(text: str) -> None:
    assert credentials_in({"a": [{"b": (text,)}]})
    for body in ({"server": {"url": text}}, {"server": {"api_key_variable": "sk-12-34"}}):
        with pytest.raises(ValidationError) as caught:
            RolloutConfig.model_validate(body)
        assert text not in str(caught.value)
        assert "sk-12-34" not in str(caught.value)
    with pytest.raises(ValidationError, match="subset holds credentials"):
        IngestConfig(subset=text)
    with pytest.raises(UsageError, match="holds credentials") as refused:
        refuse_credentials(["ingest", text])
    assert text not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["https://h/v1", "hf://datasets/x@main/y", "org/model@abc", "reasoning-gym:chain_sum", "a:b@c", "x.jsonl"]
)
def test_ordinary_settings_are_no_credentials(text: str) -> None:
    assert not credentials_in(text)
    refuse_credentials([text])


def test_an_argument_with_the_value_of_a_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-0123456789")
    with pytest.raises(UsageError, match="holds the value of OPENAI_API_KEY") as refused:
        refuse_credentials(["--set", "server.model=sk-proj-0123456789"])
    assert "sk-proj" not in str(refused.value)


CODE = """
import logging, os, traceback
from gradus.tasks.config.redaction import hide_in_logs, hide_in_output
hide_in_output()
hide_in_logs()
print("printed", os.environ["A_TOKEN"])
logging.getLogger("x").warning("logged %s", os.environ["A_TOKEN"])
try:
    raise ValueError(os.environ["A_TOKEN"])
except ValueError:
    logging.getLogger("x").exception("caught")
    traceback.print_exc()
raise KeyError(os.environ["A_TOKEN"])
"""


def test_what_a_process_prints_logs_and_dies_of_is_clean() -> None:
    root = Path(__file__).parents[3] / "src"
    env = {"PYTHONPATH": str(root), "A_TOKEN": "qwertz123456", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env, check=False)
    said = done.stdout + done.stderr
    assert "qwertz" not in said
    assert all(word in said for word in ("printed ***", "logged ***", "caught", "ValueError: ***", "KeyError: '***'"))


def test_hostile_text_takes_linear_time() -> None:
    for piece in ("://", "://a@", "?key=", "&a_", "Basic ", "a:b@", "https://", "@", "?" + "x" * 60, "://a:"):
        began = time.process_time()
        text = (piece * 100_000)[:100_000]
        hide(text)
        credentials_in(text)
        assert time.process_time() - began < 0.5, piece


def test_only_a_refusal_of_a_server_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask_mlflow("sqlite:///x.db").sentence == ""
    assert mlflow_words("http://u:p@h", "INTERNAL_ERROR", "broken\nmore") == "INTERNAL_ERROR: broken"
    assert mlflow_words("http://u:p@h", "PERMISSION_DENIED", "no").startswith(
        "the MLflow server at http://***@h forbids this account what it was asked for (403); ask who runs it"
    )
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert prefect_answer(ValueError("x")).sentence == ""
