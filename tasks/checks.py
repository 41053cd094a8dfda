"""What can be refused before anything starts: names and files of a command, looked at without reading a table.

    check_input(home.lake, "nowhere.jsonl", "rollouts")   # UsageError: neither a file nor an artefact
    check_source("nowhere.jsonl", IngestConfig())
    check_rewards(ScoreConfig())

Only what the stage itself would certainly refuse is refused here; nothing is imported that takes long.
"""

import re
from pathlib import Path

from data.errors import UsageError
from models.rewards import UnknownRewardError, resolve
from tasks.config import FilterConfig, IngestConfig, ScoreConfig

CHECKPOINTS = "checkpoints"
REFERENCE = re.compile(r"[a-z]+/[0-9a-f]{8,64}")
SAMPLES = Path(__file__).parents[1] / "data" / "samples"
_GYM = "reasoning-gym:"


def check_input(lake: Path, text: str, table: str) -> None:
    """UsageError if `text` names neither an artefact of a table nor a file or folder that could be read as one."""
    if REFERENCE.fullmatch(text):
        if text.partition("/")[0] != table:
            raise UsageError(f"{text} is a {text.partition('/')[0]} artefact", hint=f"give one of {table}")
        if not (lake / text).is_dir():
            raise UsageError(f"there is no artefact {text}", hint="list what runs made with `gradus show RUN`")
    elif table == CHECKPOINTS:
        _check_policy(lake, text)
    elif not (bundled(text) or Path(text)).exists():
        raise not_there(text, table)


def check_inputs(lake: Path, **named: str | list[str] | None) -> None:
    """Check several inputs, each by its role; nothing is said of one that was not named."""
    for role, texts in named.items():
        table = CHECKPOINTS if role in ("policy", "reference", "against") else role
        for text in [texts] if isinstance(texts, str) else texts or []:
            check_input(lake, text, table)


def check_source(source: str, config: IngestConfig) -> None:
    """UsageError if a source is neither there nor the name of something that can be fetched or generated."""
    if not source.startswith(_GYM) and not Path(source).exists() and not config.revision:
        raise no_source(source)


def check_rewards(config: ScoreConfig) -> None:
    """UsageError if there is no reward of a name, or it has no such setting."""
    for reward in config.rewards:
        try:
            resolve(reward.name, reward.settings)
        except UnknownRewardError as error:
            raise UsageError(str(error), hint="list the rewards with `gradus methods`") from None


def check_filters(filters: tuple[FilterConfig, ...]) -> None:
    """UsageError if there is no filter of a name."""
    if filters:
        from data.filters import FILTERS, unknown_filter  # noqa: PLC0415 - wanted only where filters are named

        for chosen in filters:
            if chosen.name not in FILTERS:
                raise unknown_filter(chosen.name)


def bundled(text: str) -> Path | None:
    """The path of the policy or the problems that `bundled` or `bundled:NAME` means; None for another text."""
    if text == "bundled":
        return SAMPLES / "policy"
    name = text.removeprefix("bundled:")
    return SAMPLES / f"{name}.parquet" if name != text else None


def not_there(text: str, table: str) -> UsageError:
    """The error for an input that is neither a file nor an artefact."""
    return UsageError(f"{text} is neither a file nor an artefact", hint=f"give a JSONL or Parquet file of {table}")


def no_source(source: str) -> UsageError:
    """The error for a source that is not here, and of which no revision was named."""
    return UsageError(
        f"{source} is neither a file nor a folder; a dataset on the hub needs its revision",
        hint="give --set revision=<commit>",
    )


def no_policy(text: str) -> UsageError:
    """The error for a policy that is no folder, and of which no revision was named."""
    return UsageError(f"{text} is no folder; a policy on the hub needs its revision", hint=f"write {text}@<commit>")


def _check_policy(lake: Path, text: str) -> None:
    above, _, below = (text, "", "") if Path(text).is_dir() else text.partition("+")
    if not (bundled(above) or Path(above)).is_dir() and not above.partition("@")[2]:
        raise no_policy(above)
    if below:
        check_input(lake, below, CHECKPOINTS)
