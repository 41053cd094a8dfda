"""Servers that a company already has: credentials are used as given, and seen nowhere, refused or not."""

import base64
import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import certifi
import pytest

from gradus.tasks.inspect import doctor
from tests.e2e.conftest import Program
from tests.patience import until


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


own = _load("company")
SECRETS = (own.PREFECT_LOGIN.split(":")[1], own.MLFLOW_PASSWORD, own.MLFLOW_TOKEN, "Wrong-Secret-1AB")


@pytest.fixture(scope="module")
def company(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with own.company(shared, tmp_path_factory.mktemp("company")) as servers:
        yield servers


@pytest.fixture
def rows(tmp_path: Path) -> str:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "1 + 1 =", "answer": "2"}\n')
    return str(file)


def leaks(home: Path) -> list[tuple[str, str]]:
    """Every file below a home (what was printed among them) that has a secret, in clear, in a URL or as a header."""
    pairs = [own.PREFECT_LOGIN, f"{own.MLFLOW_USER}:{own.MLFLOW_PASSWORD}", "ann:Wrong-Secret-1AB"]
    forms = {*SECRETS, *(quote(s, safe="") for s in SECRETS), *(base64.b64encode(p.encode()).decode() for p in pairs)}
    found: list[tuple[str, str]] = []
    for folder, _, names in os.walk(home, followlinks=True):
        for name in names:
            content = (Path(folder) / name).read_bytes()
            found += [(f"{folder}/{name}", form) for form in forms if form.encode() in content]
    return found


def over_tls(company: Any, **changes: str) -> dict[str, str]:
    """Environment of a user whose servers have a certificate of the company's own authority."""
    return {
        "PREFECT_API_URL": company.prefect_tls,
        "PREFECT_API_AUTH_STRING": own.PREFECT_LOGIN,
        "MLFLOW_TRACKING_URI": company.mlflow_tls,
        "MLFLOW_TRACKING_TOKEN": own.MLFLOW_TOKEN,
        "SSL_CERT_FILE": company.authority,
        **dict.fromkeys(("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"), ""),
        **changes,
    }


def in_the_url(company: Any) -> dict[str, str]:
    """The same without TLS, with MLflow's user and password before the host."""
    login = f"{own.MLFLOW_USER}:{quote(own.MLFLOW_PASSWORD, safe='')}"
    return {
        "PREFECT_API_URL": company.prefect,
        "PREFECT_API_AUTH_STRING": own.PREFECT_LOGIN,
        "MLFLOW_TRACKING_URI": company.mlflow.replace("://", f"://{login}@"),
    }


@pytest.mark.parametrize("environment", [over_tls, in_the_url])
def test_credentials_and_an_own_authority_are_used_as_given_and_stored_nowhere(
    new_program: Callable[..., Program], company: Any, rows: str, environment: Callable[[Any], dict[str, str]]
) -> None:
    program = new_program(reports=True)
    code, out, err = program.run("ingest", rows, "--json", **environment(company))
    assert code == 0, err
    assert json.loads(out)["rows"] == 1
    (launch,) = program.launches()
    assert program.prefect_state(launch) == "COMPLETED"
    until(lambda: program.mlflow_states(launch) == ["FINISHED", "FINISHED"], 600, 0.2)
    assert leaks(program.home) == []


PREFECT_LOGIN = "set PREFECT_API_AUTH_STRING to the server's user:password, or PREFECT_API_KEY to an API key"
PREFECT_CA = "set PREFECT_API_SSL_CERT_FILE (or SSL_CERT_FILE) to the file of the authority that signed it"
MLFLOW_LOGIN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
MLFLOW_CA = "set MLFLOW_TRACKING_SERVER_CERT_PATH (or SSL_CERT_FILE) to the file of the authority that signed it"
REFUSED, WANTED = "refuses the credentials that it was sent (401)", "wants credentials, and none are set (401)"
WRONG = "Wrong-Secret-1AB"
SYSTEM = certifi.where()


@pytest.mark.parametrize(
    ("changes", "what", "cure"),
    [
        ({"PREFECT_API_AUTH_STRING": f"ann:{WRONG}"}, "the Prefect server at {prefect_tls} " + REFUSED, PREFECT_LOGIN),
        ({"PREFECT_API_AUTH_STRING": ""}, "the Prefect server at {prefect_tls} " + WANTED, PREFECT_LOGIN),
        (
            {"PREFECT_API_SSL_CERT_FILE": SYSTEM},
            "the certificate of the Prefect server at {prefect_tls} is not trusted",
            PREFECT_CA,
        ),
        ({"MLFLOW_TRACKING_TOKEN": WRONG}, "the MLflow server at {mlflow_tls} " + REFUSED, MLFLOW_LOGIN),
        (
            {"MLFLOW_TRACKING_SERVER_CERT_PATH": SYSTEM},
            "the certificate of the MLflow server at {mlflow_tls} is not trusted",
            MLFLOW_CA,
        ),
    ],
)
def test_a_refusal_is_a_sentence_that_names_the_variable_and_nothing_is_computed(
    new_program: Callable[..., Program], company: Any, rows: str, changes: dict[str, str], what: str, cure: str
) -> None:
    program = new_program(reports=True)
    code, out, err = program.run("ingest", rows, "--json", **over_tls(company, **changes))
    assert (code, out, err) == (1, "", f"gradus: {what.format(**vars(company))}; {cure}\n")
    assert not (program.home / "lake").exists()
    assert leaks(program.home) == []


def test_the_doctor_says_whether_the_servers_accept_the_credentials(
    new_program: Callable[..., Program], company: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = new_program(reports=True)
    code, out, err = program.run("doctor", "--json", **over_tls(company, PREFECT_API_AUTH_STRING=f"ann:{WRONG}"))
    assert (code, err) == (0, "")
    found = {check["name"]: check for check in json.loads(out)["checks"]}
    assert (found["Prefect"]["ok"], found["Prefect"]["cure"]) == (False, PREFECT_LOGIN)
    assert found["Prefect"]["detail"] == f"the Prefect server at {company.prefect_tls} {REFUSED}"
    assert (found["MLflow"]["ok"], found["MLflow"]["detail"]) == (
        True,
        f"{company.mlflow_tls} answers and accepts this account",
    )
    assert leaks(program.home) == []
    for name, value in over_tls(company, MLFLOW_TRACKING_TOKEN=WRONG).items():
        monkeypatch.setenv(name, value)
    assert doctor.workflow()["ok"]
    refused = doctor.tracker(tmp_path)
    assert (refused["ok"], refused["detail"]) == (False, f"the MLflow server at {company.mlflow_tls} {REFUSED}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", company.mlflow.replace("://", f"://bob:{WRONG}@"))
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    assert WRONG not in str(doctor.tracker(tmp_path))


def test_a_run_that_could_not_be_reported_is_sent_later_and_a_refusal_of_that_is_a_failure(
    new_program: Callable[..., Program], company: Any, rows: str
) -> None:
    program = new_program(reports=True)
    away = over_tls(company, MLFLOW_TRACKING_URI=f"http://bob:{WRONG}@127.0.0.1:9", MLFLOW_TRACKING_TOKEN="")
    code, out, err = program.run("ingest", rows, "--json", GRADUS_TRACKING_PATIENCE_S="1", **away)
    assert code == 0, err
    (run,) = [folder.name for folder in (program.home / "runs").iterdir()]
    assert f"gradus sync {run}" in err
    refusing = over_tls(company, MLFLOW_TRACKING_TOKEN=WRONG, GRADUS_TRACKING_PATIENCE_S="1")
    code, out, err = program.run("sync", run, **refusing)
    assert (code, out) == (1, "")
    assert f"the MLflow server at {company.mlflow_tls} {REFUSED}; {MLFLOW_LOGIN}" in err
    assert leaks(program.home) == []
    code, out, err = program.run("sync", run, **over_tls(company))
    assert (code, err, "events sent" in out) == (0, "", True)
    assert program.mlflow_states(program.launches()[0]) == ["FINISHED", "FINISHED"]


@pytest.mark.parametrize(
    "words",
    [
        ("ingest", "https://ann:Wrong-Secret-1AB@example.com/rows.jsonl"),
        ("rollout", "--plan", "p", "--problems", "q", "--set", "server.url=https://ann:Wrong-Secret-1AB@h/v1"),
        ("rollout", "--plan", "p", "--problems", "q", "--set", "server.api_key_variable=Wrong-Secret-1AB"),
        ("train", "secret.toml"),
    ],
)
def test_settings_with_credentials_are_refused_before_anything_is_stored(
    new_program: Callable[..., Program], words: tuple[str, ...]
) -> None:
    program = new_program(reports=True)
    recipe = program.home / "secret.toml"
    recipe.write_text('name = "x"\n[rollout.server]\nurl = "https://h/v1?api_key=Wrong-Secret-1AB"\n')
    code, out, err = program.run(*words)
    assert (code, out) == (2, "")
    assert "Wrong-Secret" not in err
    assert not (program.home / "runs").exists()
    recipe.unlink()
    assert leaks(program.home) == []
