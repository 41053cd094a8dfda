"""The option --no-wait of every verb that computes artifacts, which another command may be computing too."""

import functools
import inspect
import os
from collections.abc import Callable
from typing import Annotated

import typer

NoWait = Annotated[bool, typer.Option("--no-wait", help="fail where another command computes the same artifact")]


def may_wait(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the option --no-wait, which forbids waiting for other commands (GRADUS_NO_WAIT)."""

    @functools.wraps(verb)
    def run(*, no_wait: bool = False, **given: object) -> None:
        if no_wait:
            os.environ["GRADUS_NO_WAIT"] = "1"
        verb(**given)

    known = inspect.signature(verb)
    option = inspect.Parameter("no_wait", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=NoWait)
    run.__annotations__ = {**verb.__annotations__, "no_wait": NoWait}
    run.__signature__ = known.replace(parameters=[*known.parameters.values(), option])  # pyright: ignore[reportAttributeAccessIssue]
    return run
