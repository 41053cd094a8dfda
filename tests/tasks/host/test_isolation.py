"""What children find in their environment, and what the clients that we use make of it, beside a real proxy."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import requests
from websockets.proxy import get_proxy
from websockets.uri import parse_uri

from gradus.data.errors import UsageError
from gradus.flows.cli import quiet
from gradus.tasks.host.processes import child_environment, isolate, module_path, past_proxies, refuse_unusable_proxies
from tests.proxy import Proxy

quiet.imported()  # alone, without the program, it leaves garbage and signals to the import
ROOT = Path(__file__).parents[3]
LOOPBACK = "127.0.0.1,localhost,::1"
NAMES = ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with Proxy() as made:
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        yield made


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"no_proxy": LOOPBACK, "NO_PROXY": LOOPBACK}),
        (
            {"no_proxy": "corp.example"},
            {"no_proxy": f"corp.example,{LOOPBACK}", "NO_PROXY": f"corp.example,{LOOPBACK}"},
        ),
        (
            {"no_proxy": "a, localhost", "NO_PROXY": "b"},
            {"no_proxy": "a,localhost,127.0.0.1,::1", "NO_PROXY": f"b,{LOOPBACK}"},
        ),
        ({"NO_PROXY": "a,*"}, {"no_proxy": "*", "NO_PROXY": "*"}),
    ],
)
def test_loopback_is_added_to_what_no_proxy_is_for(given: dict[str, str], found: dict[str, str]) -> None:
    assert past_proxies(given) == found
    assert past_proxies(found) == found


def _httpx(url: str) -> int:
    return httpx.get(url).status_code


def _requests(url: str) -> int:
    return requests.get(url, timeout=10).status_code


def _urllib(url: str) -> int:
    try:
        with urllib.request.build_opener().open(url) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize("ask", [_httpx, _requests, _urllib])
@pytest.mark.parametrize("spelling", ["http_proxy", "HTTP_PROXY", "ALL_PROXY"])
def test_every_client_reaches_loopback_past_the_proxy_and_all_else_through_it(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str], int], spelling: str
) -> None:
    monkeypatch.setenv(spelling, proxy.url)
    with Proxy(status=200) as local:
        isolate(os.environ)
        for host in ("127.0.0.1", "localhost"):
            assert ask(f"http://{host}:{local.port}/") == 200
        assert proxy.seen == []
        if not (ask is _urllib and spelling == "ALL_PROXY"):  # which urllib does not know
            assert ask("http://somewhere.invalid/") == 403
            assert proxy.seen == ["GET http://somewhere.invalid/ HTTP/1.1"]


def test_the_events_of_prefect_go_past_the_proxy_too(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy.url)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    isolate(os.environ)
    assert get_proxy(parse_uri("ws://127.0.0.1:4200/api/events/in")) is None
    assert get_proxy(parse_uri("wss://somewhere.invalid/api/events/in")) == proxy.url


def test_a_socks_proxy_that_nothing_here_can_use_is_refused_in_a_sentence(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_unusable_proxies()
    monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{proxy.port}")
    with pytest.raises(UsageError, match="all_proxy names a SOCKS proxy, for which the package socksio is needed"):
        refuse_unusable_proxies()


def test_the_current_folder_is_on_no_module_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert module_path("", ":.:./:/a::lib") == os.pathsep.join(["/a", str(tmp_path / "lib")])


def test_a_child_knows_our_code_and_nothing_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('from the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f":.:{tmp_path / 'given'}")
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    code = "import json, sys, gradus, warnings; warnings.warn('w', DeprecationWarning); print(json.dumps(sys.path[:3]))"
    environment = child_environment({"PYTHONPATH": "/more", "A": "b"})
    assert environment["A"] == "b"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f'["{ROOT / "src"}", "/more", "{tmp_path / "given"}"]\n'


def test_the_program_forgets_what_the_environment_did_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    monkeypatch.setenv("PYTHONPATH", ":/a")
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/a", "/b"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet.forget_warnings()
        warnings.warn("an old name", DeprecationWarning, stacklevel=2)
    quiet.forget_current_folder()
    assert "PYTHONWARNINGS" not in os.environ
    assert sys.path == ["/a", "/b"]
