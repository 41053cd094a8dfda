"""The stage echo: after every round, each rollout's text once more, in capitals if so set."""

from pydantic import Field

from gradus.components.settings import Config
from gradus.components.stage import Role, Short, Stage


class EchoConfig(Config):
    """How rollouts are repeated."""

    times: int = Field(default=1, ge=1, le=100)
    """How often."""
    loud: bool = False
    """In capitals."""


ECHO = Stage(
    "echo",
    "Repeat the completions of rollouts.",
    version=1,
    makes="echoes",
    settings=EchoConfig,
    takes=(
        Role("rollouts", "rollouts: a file or an artifact", many=True),
        Short("times", "how often", type=int, default=1, least=1),
    ),
    check="echo_stage.work:check",
    draws=False,
    when="round",
    table="echo_stage.work:ECHOES",
    run="echo_stage.work:run",
)
