"""Imports of large libraries without what they import only because it is installed."""

import atexit
import contextlib
import gc
import sys
from collections.abc import Callable, Generator


@contextlib.contextmanager
def lean_imports(*optional: str) -> Generator[Callable[[], None]]:
    """Hide optional modules from the imports in this block, and collect no garbage meanwhile.

    A library that looks for one of them while it is imported finds it not installed, for good; afterwards anybody can
    import them. Modules that are imported already stay. Yields a function that ends this before the block does.

        with lean_imports("pandas"):
            import prefect
    """

    def end() -> None:
        for name in optional:
            if sys.modules.get(name, end) is None:
                del sys.modules[name]
        gc.freeze()  # what libraries made while they were imported stays: no collection need look at it
        atexit.register(gc.unfreeze)  # but the last one, at the end: some libraries report a leak otherwise
        gc.enable()

    for name in optional:
        sys.modules.setdefault(name, None)  # pyright: ignore[reportArgumentType] - Python's mark for "not importable"
    gc.disable()  # a tenth to a fifth of the time, and nothing to collect
    try:
        yield end
    finally:
        end()
