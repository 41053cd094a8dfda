"""Imports of large libraries without optional packages that they would import if installed."""

import atexit
import contextlib
import gc
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cached_property
from importlib import metadata
from importlib.abc import MetaPathFinder


@contextlib.contextmanager
def lean_imports(*optional: str) -> Generator[Callable[[], None]]:
    """Hide optional modules from the imports in this block, collect no garbage and list no installed files meanwhile.

    A library that looks for one of them while it is imported finds it not installed, for good; afterwards other code
    can import them. Modules that are imported already stay. Yields a function that ends this before the block does.

        with lean_imports("pandas"):
            import prefect
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


class _NotFound(MetaPathFinder):
    """Finds a module not installed."""

    def __init__(self, module: str) -> None:
        self.module = module

    def find_spec(self, fullname: str, *_: object) -> None:
        """Raise ModuleNotFoundError for the module."""
        if fullname == self.module:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def arrow_without_pandas() -> None:
    """Have pyarrow look for pandas in vain: it would import it, half a second long, at its first array.

    What needs pandas (`to_pandas`, a Series as a column) imports it all the same.
    """
    import pyarrow as pa  # noqa: PLC0415 - for programs alone that hide pandas

    finder = _NotFound("pandas")
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
