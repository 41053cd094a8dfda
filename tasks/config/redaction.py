"""Keep secrets out of stored and printed text.

    hide("401 for https://ann:hunter22@mlflow.example")     # '401 for https://***@mlflow.example'

Settings are stored whole (manifest, run.json, journal, tracker), so one that holds credentials is refused before
anything starts (`refuse_credentials`, gradus.components.settings). Free text (errors, logs, answers of a server) is
cleaned: `hide`. A secret is the value of an environment variable with a secret's name (..._TOKEN, ..._PASSWORD,
..._API_KEY ...) or a name in GRADUS_KEY_VARIABLES, what a URL has before its @, a key in a URL's query, and what
follows `Basic` or `Bearer`; encoded forms included. Left out: values shorter than four characters, and secrets in files
that other libraries read (~/.netrc).

    check_key_variable("MY_TOKEN", "server.api_key_variable")     # UsageError unless GRADUS_KEY_VARIABLES names it

Settings may name variables that are keys by their name, and others that the user's environment lists: a recipe may come
from anybody and says where the value is sent, so it does not choose among all variables of a shell.
"""

import base64
import functools
import html
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TextIO, cast
from urllib.parse import quote, unquote

from gradus.components.settings import QUERY_KEY, credentials_in
from gradus.data.errors import UsageError, shortened

_LISTED = "GRADUS_KEY_VARIABLES"
_SUFFIX = "_API_KEY"
MASK = "***"
_MIN_CHARS = 4
_EMBEDDED_CHARS = 8
"""Shorter secrets are replaced only where they stand alone, so that `pass` does not eat into `password`."""

_SECRET_NAME = re.compile(
    r"(?:^|_)(?:TOKEN|PASSWORD|PASSWD|PASSPHRASE|SECRET|AUTH_STRING|APIKEY|ACCESS_KEY|KEY)$|HEADERS$", re.IGNORECASE
)
_REFUSED_CHARS = 12
"""Only a longer secret is looked for in arguments: a short one may be an ordinary word."""
_NO_SECRET = frozenset({"true", "false", "none", "null"})
_USERINFO = re.compile(r"(?<=://)[^\s/?#@'\"<>]+(?:@[^\s/?#@'\"<>]+)*(?=@)")
_SCHEME = re.compile(r"\b(Basic|Bearer)\s+[A-Za-z0-9+/=._~-]{6,}")
_PAIRS = (("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),)


def hide(text: str) -> str:
    """The text with every secret replaced by `***`."""
    text = _USERINFO.sub(MASK, text)
    text = _SCHEME.sub(rf"\1 {MASK}", QUERY_KEY.sub(rf"\1{MASK}", text))
    pattern = _pattern_of(tuple(os.environ.items()))
    return pattern.sub(MASK, text) if pattern else text


def refuse_credentials(words: Sequence[str]) -> None:
    """Raise UsageError if a word of a command line holds credentials: it would be stored with every result."""
    for word in words:
        held = next(
            (name for name, value in _variables(os.environ) if len(value) >= _REFUSED_CHARS and value in word), ""
        )
        if held or credentials_in(word):
            what = f"the value of {held}" if held else "credentials"
            raise UsageError(
                f"the argument {hide(word)[:200]} holds {what}, which would be stored with every result",
                hint="leave it out of arguments and settings: a server takes its key from the environment, see "
                "server.api_key_variable",
            )


@functools.cache
def hide_in_logs() -> None:
    """Clean every log record of this process, and the traceback that ends it; the second call does nothing."""
    clean_log_records()

    def end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(hide("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = end


def clean_log_records() -> None:
    """Clean every log record from now on, until another factory of records is set."""
    make_record = logging.getLogRecordFactory()

    def make_clean(*args: object, **kwargs: object) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        message = hide(record.getMessage())
        if record.exc_info:
            record.exc_text = hide("".join(traceback.format_exception(*record.exc_info)).rstrip())
        record.msg, record.args = message, None
        return record

    logging.setLogRecordFactory(make_clean)


def hide_in_output() -> None:
    """Clean what this process prints, for processes whose output is a log: libraries print addresses as they are."""
    sys.stdout, sys.stderr = cast("TextIO", _Clean(sys.stdout)), cast("TextIO", _Clean(sys.stderr))


class _Clean:
    """A stream that hides secrets in every text that is written to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text without its secrets."""
        self._stream.write(hide(text))
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


@functools.lru_cache(maxsize=1)
def _pattern_of(variables: tuple[tuple[str, str], ...]) -> re.Pattern[str] | None:
    """Return the pattern of all secrets in environment variables; None without a secret."""
    secrets = sorted(_secrets(dict(variables)), key=len, reverse=True)
    texts = ((secret, re.escape(secret)) for secret in secrets)
    parts = [text if len(secret) >= _EMBEDDED_CHARS else rf"(?<!\w){text}(?!\w)" for secret, text in texts]
    return re.compile("|".join(parts)) if parts else None


def _secrets(environment: Mapping[str, str]) -> set[str]:
    """Return every secret of an environment in every form in which it may show up."""
    plain = {value for _, value in _variables(environment)}
    pairs = [f"{environment.get(user, '')}:{environment[word]}" for user, word in _PAIRS if word in environment]
    for value in environment.values():
        for userinfo in _USERINFO.findall(value):
            user, _, word = userinfo.partition(":")
            plain |= {word or user, unquote(word or user)}
            pairs.append(unquote(userinfo))
    for value in [*plain]:
        if ":" in value:
            pairs.append(value)
            plain.add(value.partition(":")[2])
    plain |= {base64.b64encode(pair.encode()).decode() for pair in pairs}
    forms: set[str] = set()
    for value in plain:
        if len(value) >= _MIN_CHARS:  # as it is, in a URL, in JSON, in Python's own notation and in HTML
            forms |= {value, quote(value), quote(value, safe=""), json.dumps(value)[1:-1]}
            forms |= {repr(value)[1:-1], html.escape(value)}
    return {form for form in forms if len(form) >= _MIN_CHARS}


def _variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables of an environment that hold a secret, each with its value or each text of its JSON object."""
    listed = listed_variables(environment)
    for name, value in environment.items():
        if not (name in listed or _SECRET_NAME.search(name)):
            continue
        for text in _texts(value):
            if len(text) >= _MIN_CHARS and text.casefold() not in _NO_SECRET and not _is_path(text):
                yield name, text


def _is_path(text: str) -> bool:
    """Return whether a variable names a file that holds a secret rather than the secret."""
    return text.startswith(("/", "~", ".")) and os.path.exists(os.path.expanduser(text))  # noqa: PTH110, PTH111 - any text


def _texts(value: str) -> list[str]:
    value = value.removeprefix("Basic ")
    if value.startswith("{"):
        try:
            found: dict[str, object] = json.loads(value)
        except ValueError:
            return [value]
        return [text.removeprefix("Bearer ").removeprefix("Basic ") for text in found.values() if isinstance(text, str)]
    return [value]


def listed_variables(environment: Mapping[str, str] = os.environ) -> frozenset[str]:
    """Return the names in GRADUS_KEY_VARIABLES, which are separated by commas."""
    return frozenset(filter(None, map(str.strip, environment.get(_LISTED, "").split(","))))


def check_key_variable(name: str, setting: str) -> None:
    """Raise UsageError if a setting names a variable that is not a key by its name and that the user did not list."""
    if name.endswith(_SUFFIX) or name in listed_variables():
        return
    raise UsageError(
        f"{setting} names the environment variable {shortened(name)}, which is not released: settings may name those "
        f"that end in {_SUFFIX}",
        hint=f"if its value may go where these settings send it, set {_LISTED}={shortened(name)} in your environment",
    )


def check_seen_variables(names: Sequence[str], setting: str) -> None:
    """Raise UsageError if a process is to see a variable that may not be named, or that is not set."""
    for name in names:
        check_key_variable(name, setting)
        if not os.environ.get(name):
            raise UsageError(
                f"{setting} names the environment variable {shortened(name)}, which is not set",
                hint="set it in the environment of the command, or leave it out",
            )
