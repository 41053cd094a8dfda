"""Environment variables that settings may name: keys by their name, others if the user's environment lists them.

    check_key_variable("MY_TOKEN", "server.api_key_variable")     # UsageError unless GRADUS_KEY_VARIABLES names it

A recipe may come from anybody and says where the value is sent, so it does not choose among all variables of a shell.
"""

import os
from collections.abc import Sequence

from gradus.data.errors import UsageError, shortened

_LISTED = "GRADUS_KEY_VARIABLES"
_SUFFIX = "_API_KEY"


def listed_variables() -> frozenset[str]:
    """Return the names in GRADUS_KEY_VARIABLES, which are separated by commas."""
    return frozenset(filter(None, map(str.strip, os.environ.get(_LISTED, "").split(","))))


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
