"""A real proxy that refuses everything and keeps what it was asked; with status 200 an ordinary server.

with Proxy() as proxy: ...      # proxy.url, proxy.seen
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class Proxy:
    """Answers every request with one status."""

    def __init__(self, status: int = 403) -> None:
        self.seen: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.seen.append(self.requestline)
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            do_POST = do_CONNECT = do_PUT = do_PATCH = do_GET  # noqa: N815 - the base class's names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
