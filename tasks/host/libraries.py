"""Third-party libraries: imported without optional packages, and without settings from files that lie around.

    ignore_setting_files()      # before Prefect is imported, in each process that imports it
    with lean_imports("pandas"):
        import prefect

Prefect reads `.env`, `prefect.toml` and `pyproject.toml` of the folder that it is imported in, and a logging
configuration, which names the code to run, from its home. No setting of its own turns the former off, so what reads
such files in pydantic-settings, for Prefect alone here, finds none. Environment variables stay.
MLflow asks git about the current folder, and git runs what the configuration of a repository names (core.fsmonitor);
matplotlib reads a `matplotlibrc` there, which may have it start LaTeX.
"""

import atexit
import contextlib
import gc
import logging
import os
import sys
import tomllib
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cached_property, partial
from importlib import metadata
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gradus.data.errors import UsageError, in_words

PROFILES, LOGGING = "PREFECT_PROFILES_PATH", "PREFECT_LOGGING_CONFIG_PATH"
_LOGGING_BEFORE = "PREFECT_LOGGING_SETTINGS_PATH"
"""Name of `LOGGING` in earlier versions of Prefect."""


@contextlib.contextmanager
def lean_imports(*optional: str) -> Generator[Callable[[], None]]:
    """Hide optional modules from the imports in this block, collect no garbage and list no installed files meanwhile.

    A library that looks for one of them while it is imported finds it not installed, for good; afterwards other code
    can import them. Modules that are imported already stay. Yields a function that ends this before the block does.
    """

    def end() -> None:
        metadata.packages_distributions = _PACKAGES_DISTRIBUTIONS
        for name in optional:
            if sys.modules.get(name, end) is None:
                del sys.modules[name]
                if name == "pandas":
                    arrow_without_pandas()
        gc.freeze()  # no collection looks at what libraries made while they were imported, not even the last one
        if _REPORT_LEAKS & sys.modules.keys():
            atexit.register(gc.unfreeze)
        gc.enable()

    for name in optional:
        sys.modules.setdefault(name, None)  # pyright: ignore[reportArgumentType] - Python's mark for "not importable"
    metadata.packages_distributions = Distributions
    gc.disable()  # a tenth to a fifth of the time, and nothing to collect
    try:
        yield end
    finally:
        end()


class _NoPandas(MetaPathFinder):
    """Finds pandas not installed; for None in sys.modules compiled code takes None for the module."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Raise ModuleNotFoundError for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def arrow_without_pandas() -> None:
    """Have pyarrow look for pandas in vain: it would import it, half a second long, at its first array.

    What needs pandas (`to_pandas`, a Series as a column) imports it all the same.
    """
    import pyarrow as pa  # noqa: PLC0415 - for programs alone that hide pandas

    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    pa.scalar(value=True)
    sys.meta_path.remove(finder)


class Distributions(Mapping[str, list[str]]):
    """The distributions that provide each importable package, found when one is asked for.

    `importlib.metadata.packages_distributions` reads the list of files of everything that is installed, a second long,
    for an answer that is nearly always the package's own name.
    """

    def __getitem__(self, package: str) -> list[str]:
        """Return the distribution of the package's own name, or all that provide it; KeyError if none does."""
        try:
            return [metadata.distribution(package).name]
        except metadata.PackageNotFoundError:
            return self._all[package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> Mapping[str, list[str]]:
        return _PACKAGES_DISTRIBUTIONS()


_REPORT_LEAKS = {"_duckdb", "triton"}
"""Modules that report uncollected objects when the interpreter ends."""
_PACKAGES_DISTRIBUTIONS = metadata.packages_distributions


def prefect_files() -> dict[str, str]:
    """Variables by which Prefect has no profiles and its own logging configuration, unless the user names others."""
    given = os.environ
    found = find_spec("prefect")
    assert found is not None
    assert found.origin is not None
    own = Path(found.origin).with_name("logging") / "logging.yml"
    configuration = given.get(LOGGING) or given.get(_LOGGING_BEFORE) or str(own)
    return {PROFILES: given.get(PROFILES) or os.devnull, LOGGING: configuration}


def profile_api() -> str:
    """Return the API that the active profile names, of a file of profiles that the user named; empty if there is none.

    UsageError if that file cannot be read.
    """
    path = Path(os.environ.get(PROFILES) or os.devnull)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        active = os.environ.get("PREFECT_PROFILE") or found.get("active")
        return str(found["profiles"][active]["PREFECT_API_URL"])
    except KeyError:
        return ""
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{PROFILES} names {path}: {in_words(error).message}", hint="correct it, or unset it"
        ) from None


def ignore_setting_files() -> None:
    """Have Prefect find no file of settings in the current folder; call it before Prefect is imported."""
    if not any(isinstance(finder, _BeforePrefect) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforePrefect())


def heed_setting_files() -> None:
    """Undo `ignore_setting_files` once Prefect is imported: other settings of the process are read from files again."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _BeforePrefect)]
    while _opened:
        _opened.pop()()


def hide_git() -> None:
    """Have MLflow find no git, which it would run in the current folder; call it before runs are logged."""
    sys.modules["git"] = None  # pyright: ignore[reportArgumentType] - Python's mark for "not importable"
    logging.getLogger("mlflow.utils.git_utils").setLevel(logging.ERROR)  # it warns of that


@contextlib.contextmanager
def default_drawing(style: Mapping[Any, Any] | None = None) -> Generator[None]:
    """Draw as matplotlib does by default but for a style, whatever a `matplotlibrc` or the caller has set."""
    import matplotlib as mpl  # noqa: PLC0415 - slow, and reports alone draw

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style or {})
        yield


class _BeforePrefect(MetaPathFinder):
    """Shuts the sources when Prefect is first imported: a command that needs no Prefect does not pay for it."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Find nothing; Python continues with the next finder."""
        if fullname == "prefect.settings":
            _shut()


def _shut() -> None:
    from pydantic_settings.sources import (  # noqa: PLC0415 - a third of a second, and needed with Prefect alone
        ConfigFileSourceMixin,
        DotEnvSettingsSource,
    )

    def nothing(*_given: object, **_named: object) -> Mapping[str, str]:
        return {}

    for source, name in ((ConfigFileSourceMixin, "_read_files"), (DotEnvSettingsSource, "_read_env_files")):
        _opened.append(partial(setattr, source, name, getattr(source, name)))
        setattr(source, name, nothing)


_opened: list[Callable[[], None]] = []
"""Functions that open the sources again."""
