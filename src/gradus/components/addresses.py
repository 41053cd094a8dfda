"""Checks of names in settings: addresses of servers, places of a cluster, environment variables."""

from urllib.parse import urlsplit

_MAX_PORT = 65535
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""The name of an environment variable."""


def is_address(text: str) -> bool:
    """Return whether this is the address of an HTTP server.

    >>> is_address("http://127.0.0.1:8000/v1"), is_address("http://host:99999"), is_address("nowhere")
    (True, False, False)
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # a port that is not a number, half an IPv6 address
        return False
    spaced = any(char.isspace() for char in text)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0 and not spaced


def is_place(text: str) -> bool:
    """Return whether this is HOST:PORT.

    >>> is_place("node1:29400"), is_place("node1:99999"), is_place("node1")
    (True, False, False)
    """
    host, _, port = text.rpartition(":")
    named = bool(host) and not any(char.isspace() or char in ":/" for char in host)
    return named and port.isascii() and port.isdigit() and 0 < int(port[:9]) <= _MAX_PORT
