"""A verb as a Prefect flow: errors that a user can mend end the run as Failed, with their sentence as its message.

Prefect's own words would be a traceback, `Flow run encountered an exception: ...`, or, where parameters are missing or
unknown and the process ends before the flow begins, `Crashed: Process exited with status code: 1`.

`gradus serve` prints a line when a run of a deployment starts, and one when it ends, by its name in `gradus runs`:
Prefect calls `say_ended` in the process of the run, or in that of `serve` for one that was killed or cancelled.
"""

import functools
import inspect
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ParamSpec, TypeVar, cast, get_args, get_type_hints

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.flows import Flow
from prefect.states import Failed
from prefect.utilities.callables import ParameterSchema, parameter_schema
from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from gradus.data.errors import GradusError, UsageError, in_words
from gradus.flows.console.output import line
from gradus.flows.parameters import Taken, describe, taken_by, taking_those_of
from gradus.tasks.config.settings import Home

P = ParamSpec("P")
R = TypeVar("R")

_started: set[str] = set()
HINT = "correct the parameters of the run, the schedule or the deployment"


def gradus_flow(name: str) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """Make a function a flow of that name; the caller of the flow still gets the error that was raised."""

    def decorate(function: Callable[P, R]) -> Flow[P, R]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                given = inspect.signature(function).bind(*args, **kwargs).arguments
                return cast("Callable[..., R]", function)(**_typed(name, function, given))
            except (GradusError, OSError) as error:
                plain = in_words(error)
                return cast("R", Failed(message=str(plain), data=plain))
            except Exception as error:  # noqa: BLE001 - the caller gets it; Prefect gets a sentence
                return cast("R", Failed(message=str(in_words(error)), data=error))

        run.__signature__ = inspect.Signature()  # pyright: ignore[reportAttributeAccessIssue] - see _VerbFlow
        made = _VerbFlow(
            run,
            name=name,
            validate_parameters=False,
            on_completion=[say_ended],
            on_failure=[say_ended],
            on_cancellation=[say_ended],
            on_crashed=[explain_crash],
        )
        for described in (run, made):  # Prefect copied it to the flow
            del vars(described)["__signature__"]
        made.serialize_parameters = plain_parameters
        return made

    return decorate


def form_of(call: Callable[..., Any], **types: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Have a flow's function take the parameters of a call, with bounds and descriptions; `types` replaces theirs."""

    def typed(name: str, kind: Any, taken: Taken) -> Any:
        *optional, inner = reversed(get_args(kind)) if type(None) in get_args(kind) else (kind,)
        bounded: Any = Annotated[inner, Field(ge=taken.least, le=taken.most)]
        return types.get(name, bounded | None if optional else bounded)

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        made = taking_those_of(call, function, typed)
        describe(made, function.__doc__ or "", {name: taken.doc for name, *_, taken in taken_by(call)})
        return made

    return decorate


class _VerbFlow(Flow[P, R]):
    """A flow that describes its parameters on demand; a command that runs it does not need them.

    Prefect describes them while the flow is made, 0.04 s each: here of a signature that is still empty.
    """

    @property
    def parameters(self) -> ParameterSchema:
        """Names, types, defaults and texts of the parameters."""
        return parameter_schema(self.fn)

    @parameters.setter
    def parameters(self, schema: ParameterSchema) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Forget what Prefect found in the empty signature."""


def plain_parameters(parameters: Mapping[str, object]) -> dict[str, object]:
    """Return parameters as JSON values, for Prefect to store.

    Prefect's own way to this imports FastAPI, a sixth of what a command takes with a server up.
    """
    return {name: to_jsonable_python(value, fallback=repr) for name, value in parameters.items()}


def explain_crash(flow: Flow[P, R], flow_run: FlowRun, state: State[R]) -> None:
    """Replace the state of a run that could not begin with its parameters; other crashes keep theirs."""
    ended: State[Any] = state
    try:
        refuse_unbound(flow, flow_run.parameters)
    except UsageError as error:
        ended = Failed(message=str(error))
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run.id, ended, force=True)
    say_ended(flow, flow_run, ended)


def refuse_unbound(flow: Flow[P, R], given: Mapping[str, object]) -> None:
    """Raise UsageError if a parameter of the flow is missing or unknown."""
    known = inspect.signature(flow.fn).parameters
    if unknown := ", ".join(sorted(given.keys() - known.keys())):
        raise UsageError(f"{flow.name} has no parameter {unknown}; it takes {', '.join(known)}", hint=HINT)
    required = [name for name, parameter in known.items() if parameter.default is inspect.Parameter.empty]
    if missing := ", ".join(name for name in required if name not in given):
        raise UsageError(f"{flow.name} needs {missing}", hint=HINT)


def _typed(name: str, function: Callable[P, R], given: Mapping[str, object]) -> dict[str, object]:
    """Parameters as the types that the function declares; UsageError names each that cannot be one.

    Prefect's own way to this imports pydantic's first version too, for flows that have models of it.
    """
    types, typed, wrong = get_type_hints(function, include_extras=True), dict[str, object](), list[str]()
    for parameter, value in given.items():
        adapter: TypeAdapter[object] = TypeAdapter(types[parameter])
        try:
            typed[parameter] = adapter.validate_python(value)
        except ValidationError as error:
            wrong += [f"{'.'.join(map(str, (parameter, *part['loc'])))}: {part['msg']}" for part in error.errors()]
    if wrong:
        raise UsageError(f"{name}: {', '.join(wrong).replace('Input should', 'it must')}", hint=HINT)
    return typed


def say_started(name: str) -> None:
    """Print, once for a flow run, that the run of a deployment started."""
    context = FlowRunContext.get()
    flow_run = context.flow_run if context else None
    if flow_run is not None and flow_run.deployment_id and str(flow_run.id) not in _started:
        _started.add(str(flow_run.id))
        line(f"{name}: started")


def say_ended(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Print how the run of a deployment ended: of one that failed why, and what to type next."""
    if flow_run.deployment_id is None:
        return
    with get_client(sync_client=True) as client:
        name = client.read_flow_run(flow_run.id).name  # the name that it was given since it began
    line(f"{name}: {_how(state)}{_next(flow.name, name) if state.is_failed() or state.is_crashed() else ''}")


def _how(state: State[Any]) -> str:
    """Return the outcome of a run, with the error message of one that failed."""
    if state.is_completed():
        return "finished"
    if state.is_cancelling() or state.is_cancelled():
        return "cancelled"
    why = " ".join((state.message or "").split())
    return f"failed: {why}" if state.is_failed() else f"ended unexpectedly: {why}"


def _next(verb: str, run: str) -> str:
    """Return the command to type next about a run that failed; nothing if it never began."""
    if not (Home.from_environment().runs / run / "run.json").is_file():
        return ""
    return f"; see `gradus {'report' if verb == 'train' else 'show'} {shlex.quote(run)}`"
