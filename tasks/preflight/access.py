"""Check that the servers that a user names accept the credentials of the environment, with a remedy if not.

    PREFECT_API_URL, PREFECT_API_AUTH_STRING or PREFECT_API_KEY, PREFECT_API_SSL_CERT_FILE
    MLFLOW_TRACKING_URI, MLFLOW_TRACKING_TOKEN or MLFLOW_TRACKING_USERNAME and ..._PASSWORD,
    MLFLOW_TRACKING_SERVER_CERT_PATH, MLFLOW_TRACKING_CLIENT_CERT_PATH
    SSL_CERT_FILE for both

The libraries read these by themselves. Prefect's answers are read from its own client's errors. MLflow is asked once,
with requests as its client uses it, since a run would otherwise learn only at its end that nothing could be reported.
Nothing here imports prefect or mlflow. Left out: MLflow's plugins for authentication (their servers count as willing).
"""

import base64
import configparser
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gradus.data.errors import StageError
from gradus.data.records import JsonObject
from gradus.tasks.config.redaction import hide

if TYPE_CHECKING:
    import requests

Login = Mapping[str, str]
"""Variables of MLflow's client that go before those of the environment."""
NO_LOGIN: Login = {}
_LIMIT_S = 10.0
_STATUS = {"UNAUTHENTICATED": 401, "CUSTOMER_UNAUTHORIZED": 401, "PERMISSION_DENIED": 403}
_UNVERIFIED = "CERTIFICATE_VERIFY_FAILED"

PREFECT_LOGIN = "set PREFECT_API_AUTH_STRING to the server's user:password, or PREFECT_API_KEY to an API key"
MLFLOW_LOGIN = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
PREFECT_CA = "set PREFECT_API_SSL_CERT_FILE (or SSL_CERT_FILE) to the file of the authority that signed it"
MLFLOW_CA = "set MLFLOW_TRACKING_SERVER_CERT_PATH (or SSL_CERT_FILE) to the file of the authority that signed it"


@dataclass(frozen=True)
class Access:
    """Answer of a server: `problem` is empty if it is willing; `final` if waiting cannot help."""

    problem: str = ""
    cure: str = ""
    final: bool = False

    @property
    def sentence(self) -> str:
        """The problem and what to do about it; empty if there is none."""
        return f"{self.problem}; {self.cure}" if self.problem and self.cure else self.problem


def require_mlflow(uri: str, login: Login = NO_LOGIN) -> None:
    """Raise StageError if the MLflow server refuses the credentials; one that is down is reported to later."""
    answer = ask_mlflow(uri, login)
    if answer.final:
        raise StageError(answer.problem, hint=answer.cure)


def ask_mlflow(uri: str, login: Login = NO_LOGIN) -> Access:
    """Ask an MLflow server for an experiment, as its client would."""
    if urlsplit(uri).scheme not in ("http", "https"):
        return Access()
    import requests  # noqa: PLC0415 - wanted only where a server is named

    try:
        answered = _asked(uri, "experiments/get-by-name?experiment_name=gradus", login)
    except requests.exceptions.SSLError as error:
        return untrusted("MLflow", uri, error)
    except requests.exceptions.RequestException:
        return Access(f"the MLflow server at {hide(uri)} does not answer", "start it, or unset MLFLOW_TRACKING_URI")
    except OSError as error:  # a file of certificates that is not there
        return Access(hide(str(error)), MLFLOW_CA, final=True)
    plugin = os.environ.get("MLFLOW_TRACKING_AUTH") or os.environ.get("MLFLOW_TRACKING_AWS_SIGV4")
    return Access() if plugin else mlflow_answer(uri, answered.status_code, login)


def call_mlflow(uri: str, path: str, login: Login, body: JsonObject | None = None) -> JsonObject | None:
    """Return what an MLflow server answers to a call of its API, a POST if it has a body; None if nothing of use."""
    import requests  # noqa: PLC0415 - as in ask_mlflow

    try:
        answered = _asked(uri, path, login, body)
        found = answered.json() if answered.ok else None
    except (requests.exceptions.RequestException, OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _asked(uri: str, path: str, login: Login, body: JsonObject | None = None) -> "requests.Response":
    """Send one request as MLflow's client would."""
    import requests  # noqa: PLC0415 - as in ask_mlflow

    return requests.request(
        "GET" if body is None else "POST",
        f"{uri.rstrip('/')}/api/2.0/mlflow/{path}",
        json=body,
        headers=_mlflow_headers(login),
        verify=_mlflow_verify(),
        cert=os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH"),
        timeout=_LIMIT_S,
    )


def mlflow_answer(uri: str, status: int | str, login: Login = NO_LOGIN) -> Access:
    """Return the meaning of a status, or of an error code of MLflow's client; willing unless it is 401 or 403."""
    status = _STATUS.get(status, 0) if isinstance(status, str) else status
    given = bool(_mlflow_headers(login)) or "@" in urlsplit(uri).netloc
    return _answer("MLflow", uri, status, given, MLFLOW_LOGIN)


def mlflow_words(uri: str, code: str, message: str) -> str:
    """Return an error of MLflow's client for a user: a refusal as such, else its first line, shortened."""
    line = hide(f"{code}: {message.partition(chr(10))[0]}")
    return mlflow_answer(uri, code).sentence or (line if len(line) <= 200 else f"{line[:100]} … {line[-90:]}")


def untrusted(server: str, url: str, error: BaseException) -> Access:
    """The server's certificate is signed by an authority that nobody here knows, or the server wants ours."""
    if _UNVERIFIED not in str(error):
        return Access(f"no TLS connection to the {server} server at {hide(url)}: {hide(str(error))[:200]}")
    cure = PREFECT_CA if server == "Prefect" else MLFLOW_CA
    return Access(f"the certificate of the {server} server at {hide(url)} is not trusted", cure, final=True)


def prefect_answer(error: BaseException) -> Access:
    """Return the meaning of an error of Prefect's client for its server; no problem if it is about something else."""
    url = os.environ.get("PREFECT_API_URL", "")
    for cause in _causes(error):
        names = {kind.__name__ for kind in type(cause).__mro__}
        if "PrefectHTTPStatusError" in names or "HTTPStatusError" in names:
            response = getattr(cause, "response", None)
            asked = str(getattr(response, "url", "")).partition("/api")[0] + "/api"
            given = bool(os.environ.get("PREFECT_API_AUTH_STRING") or os.environ.get("PREFECT_API_KEY"))
            return _answer("Prefect", url or asked, getattr(response, "status_code", 0), given, PREFECT_LOGIN)
        if "ConnectError" in names and url:
            if _UNVERIFIED in str(cause):
                return untrusted("Prefect", url, cause)
            return Access(f"the Prefect server at {hide(url)} does not answer", "start it, or unset PREFECT_API_URL")
    return Access()


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _answer(server: str, url: str, status: int, given: bool, cure: str) -> Access:
    if status == 403 and given:
        problem = f"the {server} server at {hide(url)} forbids this account what it was asked for (403)"
        return Access(problem, f"ask who runs it for the permission, or {cure}", final=True)
    if status in (401, 403):
        how = "refuses the credentials that it was sent" if given else "wants credentials, and none are set"
        return Access(f"the {server} server at {hide(url)} {how} ({status})", cure, final=True)
    return Access()


def _mlflow_headers(login: Login) -> dict[str, str]:
    """The header that MLflow's client sends: user and password before a token, the environment before its file."""
    environment, file = {**os.environ, **login}, configparser.ConfigParser()
    file.read(Path.home() / ".mlflow" / "credentials")
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")
    user, password = (environment.get(name) or file.get("mlflow", name.lower(), fallback="") for name in names)
    if user and password:
        return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _mlflow_verify() -> str | bool:
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        return False
    named = ("MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
    return next((os.environ[name] for name in named if os.environ.get(name)), True)
