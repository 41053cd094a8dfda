"""The child's end of the pipe to its parent, see gradus.models.processes.child.

parent = Parent()                   # before anything is read or printed
for line in parent:                 # until the parent closes the pipe, or is gone
    parent.send({"done": json.loads(line)})
messages = parent.incoming()        # in place of the loop: a queue, and the end of this process with its parent
"""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from queue import SimpleQueue
from typing import Any


class Parent:
    """Receives lines of JSON, and sends one message at a time, from any thread."""

    def __init__(self) -> None:
        """Take the pipe off descriptor 0, which other code may read; children do not inherit it."""
        self._pipe = os.dup(0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        self._lines = os.fdopen(self._pipe, "rb")
        self._turn = threading.Lock()
        first = self._lines.readline()
        if not first:
            raise BrokenPipeError
        self._nonce = json.loads(first)["nonce"]

    def __iter__(self) -> Iterator[bytes]:
        with contextlib.suppress(ConnectionError):
            yield from self._lines

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; BrokenPipeError if the parent is gone."""
        line = json.dumps({"nonce": self._nonce, **message}, default=str).encode("ascii") + b"\n"
        with self._turn:
            left = memoryview(line)
            while left:
                left = left[os.write(self._pipe, left) :]

    def incoming(self) -> SimpleQueue[dict[str, Any]]:
        """Return a queue of messages that a thread fills; it kills this process's group once the parent is gone."""
        messages: SimpleQueue[dict[str, Any]] = SimpleQueue()

        def read() -> None:
            for line in self:
                messages.put(json.loads(line))
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=read, daemon=True).start()
        return messages
