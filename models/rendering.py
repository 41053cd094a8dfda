"""The prompts of many problems; a chat template renders them in a process that can be ended.

    prompt_texts(policy.tokenizer, [Asked("1 + 1 ="), Asked("2 + 2 =", hint_text="4")])

A chat template is a program that comes with a policy. Jinja's sandbox keeps it from files and the network, not from
looping for ever or filling the memory. So prompts are rendered in a fork of this process, which has the tokenizer as it
is loaded and starts at once. The kernel ends it when it has computed for too long: of CPU time, which a busy machine
does not use up. It touches neither PyTorch nor a device.
"""

import contextlib
import gc
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import psutil
from transformers import PreTrainedTokenizerBase

from gradus.models.errors import PolicyError, first_line
from gradus.models.policy import prompt_text
from gradus.models.sandbox.inside.linux import limit
from gradus.models.templates import PLAIN, PromptConfig

LIMIT_S = 30
"""CPU time that a chat template may take for a batch of prompts."""
PROMPTS_PER_S = 20
"""A batch of more prompts than this takes in LIMIT_S may take as long as it does at this rate."""
MEMORY_BYTES = 1024**3
"""Memory that it may take beside what is loaded."""
WRITTEN_BYTES = 4 * 1024**3
"""All prompts of a batch together."""
_GRACE_S = 5
"""The kernel ends it this much later, if one step of the template takes longer."""
_WALL = 10
"""Wall time is limited too, to this many times the CPU time."""


@dataclass(frozen=True)
class Asked:
    """Parts of a prompt; see gradus.models.policy.prompt_text."""

    question: str | None
    messages: list[dict[str, str]] | None = None
    hint_text: str | None = None
    answer: str | None = None
    shown: str | None = None


class PromptError(PolicyError):
    """A problem of which no prompt can be made; `index` is its place in the batch."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


def prompt_texts(tokenizer: PreTrainedTokenizerBase, asked: Sequence[Asked], style: PromptConfig = PLAIN) -> list[str]:
    """Return the prompt of each problem; raise PromptError for the first that has none."""

    def made(index: int) -> str:
        one = asked[index]
        try:
            return prompt_text(tokenizer, one.question, one.messages, one.hint_text, style, one.answer, one.shown)
        except PolicyError as error:
            raise PromptError(index, str(error)) from None

    if tokenizer.chat_template is None or not asked:
        return [made(index) for index in range(len(asked))]
    limit_s = max(LIMIT_S, -(-len(asked) // PROMPTS_PER_S))
    return _rendered(made, len(asked), limit_s, f"the chat template of the policy in {tokenizer.name_or_path}")


def _rendered(made: Callable[[int], str], count: int, limit_s: int, template: str) -> list[str]:
    """Return the texts that a fork of this process makes, one JSON line each; an error is an object."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(made, count, limit_s, theirs)
    os.close(theirs)
    texts: list[str] = []
    error, left_bytes = f"{template} did not end within {limit_s} s of computing", WRITTEN_BYTES
    try:
        with os.fdopen(ours, "rb") as lines:
            for line in lines:
                left_bytes -= len(line)
                try:
                    found: str | dict[str, str] = json.loads(line)
                except ValueError:
                    break  # the process ended within it
                if not isinstance(found, str):
                    error = found["error"]
                    break
                if left_bytes < 0:
                    error = f"{template} writes more than {WRITTEN_BYTES >> 30} GiB"
                    break
                texts.append(found)
    finally:
        os.kill(pid, signal.SIGKILL)  # not waited for yet, so the id is still its own
        os.waitpid(pid, 0)
    if len(texts) == count:
        return texts
    raise PromptError(len(texts), error)


def _child(made: Callable[[int], str], count: int, limit_s: int, out: int) -> NoReturn:
    """Write every text, then end without a trace in what was forked: no handler and no buffer of its own is flushed."""
    try:
        gc.disable()  # it would copy every page that the two share
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGXCPU, _stop)
        signal.setitimer(signal.ITIMER_REAL, _WALL * limit_s)
        limit("CPU", limit_s, limit_s + _GRACE_S)
        limit("CORE", 0)
        limit("AS", psutil.Process().memory_info().vms + MEMORY_BYTES)
        with os.fdopen(out, "wb") as lines, contextlib.suppress(_StoppedError):
            for index in range(count):
                lines.write(json.dumps(_text(made, index)).encode() + b"\n")
    finally:
        os._exit(0)


class _StoppedError(BaseException):
    """The CPU time is used up: what was rendered is written, so that the prompt at fault is known."""


def _stop(*_: object) -> None:
    raise _StoppedError


def _text(made: Callable[[int], str], index: int) -> str | dict[str, str]:
    try:
        return made(index)
    except PolicyError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": f"the policy's chat template needs more than {MEMORY_BYTES >> 30} GiB of memory"}
    except Exception as error:  # noqa: BLE001 - whatever a program of somebody else's raises
        return {"error": f"the policy's chat template fails: {first_line(error)}"}
