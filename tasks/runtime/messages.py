"""Messages from a worker to its parent, a JSON line each, distinguished by `kind`."""

from typing import Literal, TypedDict

from gradus.tasks.runs.records import Report


class Sign(TypedDict):
    """The worker can take jobs, has taken one, or is alive."""

    kind: Literal["ready", "taken", "alive"]


class Beat(TypedDict):
    """Progress of the stage: the share done, and the same in words."""

    kind: Literal["beat"]
    frac: float
    text: str


class Done(TypedDict):
    """The job is done."""

    kind: Literal["done"]
    result: Report


class Failed(TypedDict):
    """The job raised an error; `known` says whether it is one of gradus.data.errors."""

    kind: Literal["error"]
    type: str
    known: bool
    message: str
    hint: str


Message = Sign | Beat | Done | Failed
