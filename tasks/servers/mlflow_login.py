"""The login of a home's own MLflow server, for the clients of ours that talk to it; no other server is sent it."""

from pathlib import Path
from urllib.parse import urlsplit

from gradus.tasks.servers.found_servers import Proof, ask_at
from gradus.tasks.servers.prefect_server import LOOPBACK
from gradus.tasks.servers.secret import USER, secret

_ASK_S = 5.0


def mlflow_login(home: Path, uri: str) -> dict[str, str]:
    """Return the environment variables of MLflow's client if a server proves that it is this home's; else none.

    It is asked by IP address alone: `localhost` may have a second address with another listener.
    """
    parts = urlsplit(uri)
    number = parts.netloc.removeprefix(f"{LOOPBACK}:")
    if parts.scheme != "http" or parts.netloc == number or not number.isdecimal():
        return {}
    key = secret(home)
    if ask_at(f"http://{parts.netloc}", str(home.resolve()), key, _ASK_S) is not Proof.PROVED:
        return {}
    return {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": key}
