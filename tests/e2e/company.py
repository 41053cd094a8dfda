"""Servers as a company has them, on loopback: real ones, behind credentials, and behind TLS with an own authority."""

import base64
import contextlib
import datetime
import http.client
import ipaddress
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.patience import quiet_port, until

PREFECT_LOGIN = "ann:Prefect-Secret-7QX"
MLFLOW_USER, MLFLOW_PASSWORD = "bob", "MLflow@Secret-9ZK"
MLFLOW_TOKEN = "token-Secret-4WJ"

_PREFECT = """
import asyncio, sys, uvicorn
from prefect.server.api.server import create_app
app = create_app()
def server(port, **more):
    return uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=int(port), log_level="error", **more))
plain, tls, certificate = sys.argv[1:]
async def main():
    await asyncio.gather(
        server(plain, lifespan="on").serve(), server(tls, lifespan="off", ssl_certfile=certificate).serve()
    )
asyncio.run(main())
"""


@dataclass(frozen=True)
class Company:
    """Addresses of the servers, without and with TLS, and the file of the authority that signed the latter."""

    prefect: str
    prefect_tls: str
    mlflow: str
    mlflow_tls: str
    authority: str


@contextlib.contextmanager
def company(home: Path, folder: Path) -> Iterator[Company]:
    """Start them on the databases of a home."""
    certificate, authority = certificates(folder)
    ports = [quiet_port() for _ in range(3)]
    prefect = [sys.executable, "-c", _PREFECT, str(ports[0]), str(ports[1]), str(certificate)]
    mlflow = [
        sys.executable,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(ports[2]),
        "--workers",
        "1",
    ]
    mlflow += ["--backend-store-uri", f"sqlite:///{home / 'mlflow' / 'mlflow.db'}"]
    mlflow += ["--artifacts-destination", str(folder / "artifacts")]
    settings = {"PREFECT_HOME": str(home / "prefect"), "PREFECT_SERVER_API_AUTH_STRING": PREFECT_LOGIN}
    settings["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # seven more processes, which nothing here asks
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    with contextlib.ExitStack() as running:
        processes = [running.enter_context(_process(each, {**kept, **settings}, folder)) for each in (prefect, mlflow)]
        plain = running.enter_context(guarded(ports[2]))
        tls = running.enter_context(guarded(ports[2], certificate))
        for port, path in ((ports[0], "/api/health"), (ports[2], "/health")):
            until(lambda url=f"http://127.0.0.1:{port}{path}": _answers(url) or _ended(processes), 360, 0.2)
        assert not _ended(processes), "\n".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
        yield Company(
            f"http://127.0.0.1:{ports[0]}/api",
            f"https://127.0.0.1:{ports[1]}/api",
            f"http://127.0.0.1:{plain}",
            f"https://127.0.0.1:{tls}",
            str(authority),
        )


def certificates(folder: Path) -> tuple[Path, Path]:
    """An authority of our own and a certificate of 127.0.0.1 with its key: (certificate and key, authority)."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Company Authority")])
    now = datetime.datetime.now(datetime.UTC)

    def build(subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        unsigned = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
        unsigned = unsigned.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(1))
        return unsigned.not_valid_after(now + datetime.timedelta(1))

    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    root = build(issuer, authority_key.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
    root = root.add_extension(usage, critical=True)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    issued = build(name, key.public_key()).add_extension(place, critical=False)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    server, authority = folder / "server.pem", folder / "authority.pem"
    server.write_bytes(private + issued.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    authority.write_bytes(root.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    return server, authority


@contextlib.contextmanager
def guarded(upstream: int, certificate: Path | None = None) -> Iterator[int]:
    """A reverse proxy that asks for MLflow's user and password, or its token; its port.

    A refusal repeats what it was sent, as proxies under debugging do.
    """
    login = base64.b64encode(f"{MLFLOW_USER}:{MLFLOW_PASSWORD}".encode()).decode()
    welcome = {f"Basic {login}", f"Bearer {MLFLOW_TOKEN}"}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            given = self.headers.get("Authorization")
            if given not in welcome:
                self.answer(401, [], f"You are not authenticated; you sent {given}".encode())
                return
            connection = http.client.HTTPConnection("127.0.0.1", upstream, timeout=120)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "authorization")}
            connection.request(self.command, self.path, body, headers)
            found = connection.getresponse()
            self.answer(found.status, found.getheaders(), found.read())
            connection.close()

        def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.forward)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def _process(command: list[str], env: dict[str, str], folder: Path) -> "Iterator[subprocess.Popen[bytes]]":
    with (folder / f"{len(list(folder.iterdir()))}.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ended(processes: "list[subprocess.Popen[bytes]]") -> bool:
    return any(process.poll() is not None for process in processes)


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False).status_code == 200
    return False
